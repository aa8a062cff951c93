"""What a limiter granted, judged from outside.

A caller knows of each request when it sent it, when the answer came, and what the answer was. The grant happened at some moment
between the two; nobody outside knows which. So every statement here is one that holds whatever those moments were:

- `worst_span`: grants that were sent after a and answered before b all happened within b - a, the longest span they can have filled.
  A bucket of `burst` that refills at the rate for all of b - a could not have paid for more than `burst + rate x (b - a)` of them.
- `refused_wrongly`: refusals that a bucket could not have made, even if every grant that may have come before took place before it,
  as late as possible, and none of the time of the request itself counted as refill.

There is one clock, the caller's; no other is read or guessed. All numbers are integers: units, and ticks of that clock.
The bucket is full before the first answer, and the answers are all that its callers got.
"""

from bisect import bisect_right
from typing import NamedTuple

GRANTED, REFUSED, UNKNOWN = "granted", "refused", "unknown"


class Answer(NamedTuple):
    """One request. `UNKNOWN`: an error, or no answer; it may have been charged."""

    sent: int
    received: int
    verdict: str


class Limit(NamedTuple):
    """`amount` units in each `period` (ticks), and at most `burst` at once."""

    burst: int
    amount: int
    period: int

    def allowed(self, span):
        """The most that any span of so many ticks may grant."""
        return self.burst + self.amount * span // self.period


class Span(NamedTuple):
    """The span in which most was granted beyond the rate."""

    start: int
    end: int
    granted: int
    allowed: int
    # The burst of a bucket at this rate that could have granted as much.
    needed: int

    @property
    def is_excess(self):
        return self.granted > self.allowed


def worst_span(answers, limit):
    """The span that needs the largest bucket; `None`: nothing was granted. Its excess, if any, is certain. O(n log n)."""
    grants = [answer for answer in answers if answer.verdict == GRANTED]
    if not grants:
        return None
    # In units of 1/period: granted(a, b) x period - amount x (b - a), at its largest. For each b, in rising order, a row holds this for every a.
    starts = sorted(grant.sent for grant in grants)
    row = Row([limit.amount * start for start in starts])
    most, end = None, None
    place = {start: index for index, start in enumerate(starts)}
    for grant in sorted(grants, key=lambda grant: grant.received):
        row.add(place[grant.sent] + 1, limit.period)
        value = row.highest(bisect_right(starts, grant.received)) - limit.amount * grant.received
        if most is None or value > most:
            most, end = value, grant.received
    within = sorted((grant for grant in grants if grant.received <= end), key=lambda grant: -grant.sent)
    spans = [(count * limit.period - limit.amount * (end - grant.sent), count, grant.sent) for count, grant in enumerate(within, 1)]
    most, count, start = max(spans)
    return Span(start, end, count, limit.allowed(end - start), max(-(-most // limit.period), 1))


def refused_wrongly(answers, limit):
    """The refusals of a bucket that certainly held a unit. O(n log n)."""
    charges = [answer for answer in answers if answer.verdict != REFUSED]
    refusals = [answer for answer in answers if answer.verdict == REFUSED]
    # For a refusal of (s, r): max over a <= s of charges(received >= a, sent <= r) x period - amount x (s - a).
    moments = sorted({charge.received for charge in charges} | {refusal.sent for refusal in refusals})
    row = Row([limit.amount * moment for moment in moments])
    place = {moment: index for index, moment in enumerate(moments)}
    charges.sort(key=lambda charge: charge.sent)
    wrong, done = [], 0
    for refusal in sorted(refusals, key=lambda refusal: refusal.received):
        while done < len(charges) and charges[done].sent <= refusal.received:
            row.add(place[charges[done].received] + 1, limit.period)
            done += 1
        taken = row.highest(place[refusal.sent] + 1) - limit.amount * refusal.sent
        if limit.burst * limit.period - taken >= limit.period:
            wrong.append(refusal)
    return wrong


def one_bucket(answers, limit):
    """How many of these requests one exact bucket grants that decides each as its answer comes: to compare with, not a proof.

    Requests without a verdict are left out.
    """
    full = limit.burst * limit.period
    level, at, granted = full, None, 0
    for moment in sorted(answer.received for answer in answers if answer.verdict != UNKNOWN):
        level = min(full, level + limit.amount * (moment - (moment if at is None else at)))
        at = moment
        if level >= limit.period:
            level -= limit.period
            granted += 1
    return granted


def retry_after_kept(said, answer):
    """Whether a lone caller that waited as long as it was told was admitted; `None`: it was told nothing, or got no verdict."""
    if said is None or answer is None or answer.verdict == UNKNOWN:
        return None
    return answer.verdict == GRANTED


class Row:
    """Numbers in a row: adds to all up to a place, and tells the highest of all up to a place, each in O(log n).

    A tree over the places: a node keeps what was added at its places, and the highest number below it as far as its own additions
    go. What was added at a place counts for that place and all before it.
    """

    LOWEST = -(1 << 200)

    def __init__(self, numbers):
        self.leaves = 1 << max(len(numbers) - 1, 0).bit_length()
        padding = [self.LOWEST] * (self.leaves - len(numbers))
        self.added = [0] * (2 * self.leaves)
        self.best = [self.LOWEST] * self.leaves + list(numbers) + padding
        for node in range(self.leaves - 1, 0, -1):
            self._join(node)

    def add(self, end, amount):
        """Adds to the first `end` numbers."""
        node = self.leaves + end - 1
        self.added[node] += amount
        self.best[node] += amount
        while node > 1:
            node //= 2
            self._join(node)

    def highest(self, end):
        """The highest of the first `end` numbers."""
        node = self.leaves + end - 1
        best, added = self.best[node], self.added[node]
        while node > 1:
            left, right = node & ~1, node | 1
            if node == right:
                best = max(best, self.best[left] + added)
                added += self.added[left]
            else:
                best += self.added[right]
                added += self.added[right]
            node //= 2
        return best

    def _join(self, node):
        left, right = 2 * node, 2 * node + 1
        self.added[node] = self.added[left] + self.added[right]
        self.best[node] = max(self.best[right], self.best[left] + self.added[right])
