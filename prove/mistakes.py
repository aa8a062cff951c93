"""A small exact limiter, and ten forks of it with one mistake each, as they are made in the field.

The limiter is the bucket of one caller, as a store keeps it for several gateways: the arithmetic of `crates/limit`, in Python. `trial`
drives it in virtual time through all that the mistakes need, and hands back what a caller saw of it.
"""

import random
from collections import Counter

from checker import GRANTED, REFUSED, Answer


class Limiter:
    """No mistake. The level is counted in units x period, so that nothing is rounded."""

    def __init__(self, limit):
        self.limit = limit
        self.unit, self.full = limit.period, limit.burst * limit.period
        self.level, self.at = self.full, 0
        self.leased, self.held = 0, Counter()
        self.replica = self.at

    def refill(self, now):
        elapsed = max(now - self.at, 0)
        self.level = max(self.level, min(self.room(), self.level + self.limit.amount * elapsed))
        self.at = max(self.at, now)

    def room(self):
        """Leased units count against the burst."""
        return self.full - self.leased * self.unit

    def draw(self, gateway, now):
        if self.held[gateway]:
            self.held[gateway] -= 1
            return True
        self.refill(now)
        granted = self.level >= self.unit
        self.level -= self.unit * granted
        return granted

    def draw_together(self, gateways, now):
        """Requests that reach several gateways at the same moment."""
        return [self.draw(gateway, now) for gateway in gateways]

    def lease(self, gateway, units, now):
        self.refill(now)
        units = min(units, self.level // self.unit)
        self.level -= units * self.unit
        self.leased += units
        self.held[gateway] += units

    def give_back(self, gateway, units, now):
        """`units`: as many as were leased. What is left of them returns to the bucket."""
        self.refill(now)
        self.leased -= units
        self.level = min(self.room(), self.level + self.held.pop(gateway, 0) * self.unit)

    def refund(self, now):
        self.refill(now)
        self.level = max(self.level, min(self.room(), self.level + self.unit))

    def replicate(self):
        self.replica = self.at

    def fail_over(self):
        """The promoted server has the level and the moment that belongs to it."""


class FloatRefill(Limiter):
    """A moment in floating-point seconds since the epoch: the time of one unit is rounded when it is added."""

    EPOCH = 1_760_000_000
    arrival = 0.0

    def draw(self, gateway, now):
        now, each = self.EPOCH + now / 1e9, self.limit.period / self.limit.amount / 1e9
        arrival = max(self.arrival, now)
        granted = arrival - now <= each * (self.limit.burst - 1)
        self.arrival = arrival + each * granted
        return granted


class ReadThenWrite(Limiter):
    """The level is read in one call and written in another one."""

    def draw_together(self, gateways, now):
        self.refill(now)
        read = self.level
        verdicts = [read >= self.unit for _ in gateways]
        self.level = read - self.unit * any(verdicts)
        return verdicts


class WindowEdge(Limiter):
    """A count for each window, as long as a bucket takes to fill."""

    window, used = None, 0

    def draw(self, gateway, now):
        window = now * self.limit.amount // self.full
        if window != self.window:
            self.window, self.used = window, 0
        self.used += self.used < self.limit.burst
        granted, self.level = self.level != self.used, self.used
        return granted


class ExpiryBeforeFull(Limiter):
    """A key that rests for a tenth of the time to full is forgotten."""

    def refill(self, now):
        if (now - self.at) * self.limit.amount > self.full // 10:
            self.level = self.room()
        super().refill(now)


class RefillTwiceAfterFailOver(Limiter):
    """The promoted server has the new level and an older moment: the time between is refilled once more."""

    def fail_over(self):
        self.at = self.replica


class LeaseNotCounted(Limiter):
    """A bucket fills up while a gateway still holds units of it."""

    def room(self):
        return self.full


class ClockSteppedBack(Limiter):
    """The moment follows a clock that is put back, and the same time is refilled again."""

    def refill(self, now):
        super().refill(now)
        self.at = now


class RoundingUp(Limiter):
    """Whole units: what has been gained is rounded up."""

    def refill(self, now):
        gained = -(-self.limit.amount * (now - self.at) // self.unit)
        if gained > 0:
            self.level, self.at = min(self.room(), self.level + gained * self.unit), now


class PerInstance(Limiter):
    """A bucket for each gateway."""

    def __init__(self, limit):
        super().__init__(limit)
        self.own = {}

    def draw(self, gateway, now):
        return Limiter.draw(self.own.setdefault(gateway, Limiter(self.limit)), gateway, now)


class RefundAboveBurst(Limiter):
    """A unit that comes back late is put on top of a full bucket."""

    def refund(self, now):
        self.refill(now)
        self.level += self.unit


MISTAKES = [
    FloatRefill,
    ReadThenWrite,
    WindowEdge,
    ExpiryBeforeFull,
    RefillTwiceAfterFailOver,
    LeaseNotCounted,
    ClockSteppedBack,
    RoundingUp,
    PerInstance,
    RefundAboveBurst,
]


def trial(limiter, limit, seed=0, gateways=3):
    """Drives a limiter through bursts, floods, pauses, a window's edge, a lease, a fail-over, a clock that is put back, and late refunds.

    Each request is sent up to a unit's time before it is decided, and answered as much later.
    """
    rng, each, answers = random.Random(seed), limit.period // limit.amount, []
    now, stepped = 0, 0

    def note(verdict):
        answers.append(Answer(now - rng.randrange(each), now + rng.randrange(each), GRANTED if verdict else REFUSED))

    def flood(requests, pause=0):
        """One request after the other, to the gateways in turn."""
        nonlocal now
        for number in range(requests):
            note(limiter.draw(number % gateways, now + stepped))
            now += pause

    def rest(units):
        nonlocal now
        now += units * each

    flood(3 * limit.burst)  # a burst, then each unit as it comes
    flood(20 * limit.burst, pause=each * 19 // 20)
    for _ in range(4):  # bursts with pauses, shorter than the time to full
        rest(limit.burst // 4)
        flood(2 * limit.burst)
    now += -now % (limit.burst * each) + limit.burst * each * 9 // 10  # the end of a window, and the begin of the next
    flood(2 * limit.burst)
    rest(limit.burst // 8)
    flood(2 * limit.burst)
    rest(limit.burst)
    for _ in range(limit.burst):  # several gateways at the same moment
        for verdict in limiter.draw_together(range(gateways), now + stepped):
            note(verdict)
    rest(limit.burst)  # a lease that is used after the bucket has filled
    limiter.lease(0, limit.burst // 2, now + stepped)
    rest(limit.burst)
    flood(gateways * limit.burst)
    limiter.give_back(0, limit.burst // 2, now + stepped)
    rest(limit.burst // 2)  # a fail-over, just after what has come was spent
    limiter.replicate()
    rest(limit.burst // 2)
    flood(2 * limit.burst)
    limiter.fail_over()
    flood(2 * limit.burst)
    for _ in range(4):  # a clock that is put back, and set right again
        rest(limit.burst // 8)
        flood(limit.burst)
        stepped = -each * limit.burst // 10
        flood(limit.burst)
        stepped = 0
        flood(limit.burst)
    rest(4 * limit.burst)  # refunds that come when the bucket is full again
    for _ in range(limit.burst // 10):
        limiter.refund(now + stepped)
    flood(2 * limit.burst)
    return answers
