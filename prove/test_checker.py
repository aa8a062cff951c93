"""The checker against itself: what it calls an excess is one, and it says as much as can be said. `python3 -m unittest -v prove/test_checker.py`"""

import random
import unittest

from checker import GRANTED, REFUSED, UNKNOWN, Answer, Limit, Row, one_bucket, refused_wrongly, retry_after_kept, worst_span

SECOND = 1_000_000_000
TEN = Limit(burst=100, amount=10, period=SECOND)


def at_once(moment, count, verdict=GRANTED):
    return [Answer(moment, moment, verdict)] * count


def bucket_with_hidden_moments(rng, limit, requests, slack):
    """Requests that one exact bucket decided, each at a moment that the answer does not tell."""
    moments = sorted(rng.randrange(20 * limit.period) for _ in range(requests))
    level, at, answers = limit.burst * limit.period, 0, []
    for moment in moments:
        level, at = min(limit.burst * limit.period, level + limit.amount * (moment - at)), moment
        verdict = GRANTED if level >= limit.period else REFUSED
        level -= limit.period if verdict == GRANTED else 0
        answers.append(Answer(moment - rng.randrange(slack), moment + rng.randrange(slack), verdict))
    rng.shuffle(answers)
    return answers


def needed_slowly(answers, limit):
    """Every span between a moment of sending and one of receiving, in O(n^3)."""
    grants = [answer for answer in answers if answer.verdict == GRANTED]
    inside = lambda a, b: sum(a <= grant.sent and grant.received <= b for grant in grants)
    spans = [(a.sent, b.received) for a in grants for b in grants if a.sent <= b.received]
    return max([1] + [-(-(inside(a, b) * limit.period - limit.amount * (b - a)) // limit.period) for a, b in spans])


def wrong_slowly(answers, limit):
    """Every moment back to which the grants may reach, in O(n^3)."""
    charges = [answer for answer in answers if answer.verdict != REFUSED]

    def taken(refusal):
        moments = [refusal.sent] + [charge.received for charge in charges if charge.received <= refusal.sent]
        reach = lambda a: sum(charge.received >= a and charge.sent <= refusal.received for charge in charges)
        return max(reach(a) * limit.period - limit.amount * (refusal.sent - a) for a in moments)

    refusals = [answer for answer in answers if answer.verdict == REFUSED]
    return {refusal for refusal in refusals if (limit.burst - 1) * limit.period >= taken(refusal)}


class WorstSpan(unittest.TestCase):
    def test_burst_and_rate_are_allowed_and_one_more_is_excess(self):
        exact = at_once(0, 100) + [Answer(step * SECOND // 10, step * SECOND // 10, GRANTED) for step in range(1, 51)]
        self.assertEqual(worst_span(exact, TEN)[2:], (100, 100, 100))
        span = worst_span(exact + at_once(5 * SECOND, 1), TEN)
        self.assertEqual((span.granted, span.allowed, span.needed, span.is_excess), (151, 150, 101, True))

    def test_a_nanosecond_less_than_the_refill_is_excess(self):
        late, early = at_once(0, 100) + at_once(SECOND // 10, 1), at_once(0, 100) + at_once(SECOND // 10 - 1, 1)
        self.assertFalse(worst_span(late, TEN).is_excess)
        self.assertTrue(worst_span(early, TEN).is_excess)

    def test_slow_answers_are_given_the_benefit_of_the_doubt(self):
        # 200 grants, 100 of which may have happened ten seconds later.
        slow = at_once(0, 100) + [Answer(0, 10 * SECOND, GRANTED)] * 100
        self.assertFalse(worst_span(slow, TEN).is_excess)
        self.assertTrue(worst_span(slow + [Answer(0, 10 * SECOND, GRANTED)], TEN).is_excess)

    def test_the_span_is_the_one_of_the_excess_and_not_the_whole_run(self):
        quiet = at_once(0, 1) + at_once(100 * SECOND, 130) + at_once(200 * SECOND, 1)
        span = worst_span(quiet, TEN)
        self.assertEqual((span.start, span.end, span.granted, span.needed), (100 * SECOND, 100 * SECOND, 130, 130))

    def test_refused_and_unknown_are_no_grants(self):
        self.assertIsNone(worst_span(at_once(0, 500, REFUSED) + at_once(0, 500, UNKNOWN), TEN))

    def test_an_exact_bucket_is_never_accused_whatever_the_delays(self):
        for seed in range(300):
            rng = random.Random(seed)
            limit = Limit(rng.randint(1, 20), rng.randint(1, 7), rng.randint(1, 1000))
            answers = bucket_with_hidden_moments(rng, limit, 200, rng.choice([1, 2, limit.period + 1, 9 * limit.period]))
            span = worst_span(answers, limit)
            self.assertLessEqual(span.needed, limit.burst, f"seed {seed}")
            self.assertFalse(span.is_excess, f"seed {seed}")
            self.assertEqual(refused_wrongly(answers, limit), [], f"seed {seed}")

    def test_the_fast_way_finds_what_the_slow_way_finds(self):
        for seed in range(200):
            rng = random.Random(seed)
            limit = Limit(rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 20))
            answers = []
            for _ in range(rng.randint(1, 25)):
                sent = rng.randrange(60)
                answers.append(Answer(sent, sent + rng.randrange(15), rng.choice([GRANTED, GRANTED, REFUSED, UNKNOWN])))
            if any(answer.verdict == GRANTED for answer in answers):
                self.assertEqual(worst_span(answers, limit).needed, needed_slowly(answers, limit), f"seed {seed}")
            self.assertEqual(set(refused_wrongly(answers, limit)), wrong_slowly(answers, limit), f"seed {seed}")

    def test_a_hundred_thousand_answers_take_seconds(self):
        rng = random.Random(1)
        many = [Answer(sent, sent + 1000, GRANTED) for sent in (rng.randrange(SECOND) for _ in range(100_000))]
        self.assertEqual(worst_span(many, TEN).granted, 100_000)


class Refused(unittest.TestCase):
    def test_refused_with_a_unit_left_is_wrong_and_with_less_is_not(self):
        self.assertEqual(len(refused_wrongly(at_once(0, 99) + at_once(1, 1, REFUSED), TEN)), 1)
        self.assertEqual(refused_wrongly(at_once(0, 100) + at_once(SECOND // 10 - 1, 1, REFUSED), TEN), [])
        self.assertEqual(len(refused_wrongly(at_once(0, 100) + at_once(SECOND // 10, 1, REFUSED), TEN)), 1)

    def test_what_may_have_been_charged_counts_as_charged(self):
        self.assertEqual(refused_wrongly(at_once(0, 99) + at_once(0, 1, UNKNOWN) + at_once(1, 1, REFUSED), TEN), [])
        # A grant that was under way at the same time may have come first.
        self.assertEqual(refused_wrongly(at_once(0, 99) + [Answer(1, 9, GRANTED), Answer(0, 5, REFUSED)], TEN), [])


class Others(unittest.TestCase):
    def test_one_bucket_grants_burst_and_rate(self):
        self.assertEqual(one_bucket(at_once(7, 300, REFUSED) + at_once(7 + 3 * SECOND, 300, REFUSED), TEN), 130)

    def test_retry_after_is_kept_broken_or_not_said(self):
        self.assertTrue(retry_after_kept(1, Answer(0, 0, GRANTED)))
        self.assertFalse(retry_after_kept(1, Answer(0, 0, REFUSED)))
        self.assertIsNone(retry_after_kept(None, Answer(0, 0, GRANTED)))
        self.assertIsNone(retry_after_kept(1, None))

    def test_row_is_a_list_that_is_added_to_up_to_a_place(self):
        rng = random.Random(3)
        for size in (1, 2, 3, 7, 8, 9):
            plain = [rng.randint(-9, 9) for _ in range(size)]
            row = Row(plain)
            for _ in range(50):
                end, amount = rng.randint(1, size), rng.randint(-9, 9)
                plain = [value + amount * (index < end) for index, value in enumerate(plain)]
                row.add(end, amount)
                self.assertEqual([row.highest(end) for end in range(1, size + 1)], [max(plain[:end]) for end in range(1, size + 1)])


if __name__ == "__main__":
    unittest.main()
