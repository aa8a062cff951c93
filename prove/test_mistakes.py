"""Ten planted mistakes: the checker finds each, and accuses the limiter without one of nothing. `python3 -m unittest -v prove/test_mistakes.py`"""

import unittest

from checker import Limit, refused_wrongly, worst_span
from mistakes import MISTAKES, Limiter, trial

SECOND = 1_000_000_000
# A slow one and a fast one: rounded moments show where a unit takes few of them.
LIMITS = [Limit(100, 10, SECOND), Limit(100, 1_000_000, SECOND)]
SEEDS = range(5)


class Mistakes(unittest.TestCase):
    def test_limiter_without_a_mistake_is_never_accused(self):
        for limit in LIMITS:
            for seed in SEEDS:
                answers = trial(Limiter(limit), limit, seed)
                self.assertFalse(worst_span(answers, limit).is_excess, f"{limit} {seed}")
                self.assertGreaterEqual(worst_span(answers, limit).needed, limit.burst - 1, f"{limit} {seed}: the trial uses what it may")

    def test_limiter_with_a_short_bucket_is_found_to_refuse_wrongly(self):
        limit = LIMITS[0]
        answers = trial(Limiter(limit._replace(burst=99)), limit)
        self.assertFalse(worst_span(answers, limit).is_excess)
        self.assertTrue(refused_wrongly(answers, limit))


def found(mistake):
    def test(self):
        for seed in SEEDS:
            spans = [worst_span(trial(mistake(limit), limit, seed), limit) for limit in LIMITS]
            self.assertTrue(any(span.is_excess for span in spans), f"seed {seed}: {mistake.__doc__}")

    return test


for number, mistake in enumerate(MISTAKES, 1):
    setattr(Mistakes, f"test_mistake_{number:02}_{mistake.__name__}_is_found", found(mistake))

if __name__ == "__main__":
    unittest.main()
