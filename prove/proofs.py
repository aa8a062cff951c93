"""The arithmetic of `crates/limit`, written once more as formulas, and proved step by step (Z3).

What is proved of each step, for all numbers within the bounds of a file: let Phi be what may still be granted at a moment. A grant
lowers Phi by its price, time raises it by at most the rate, nothing else raises it, and it never exceeds the burst. So in every span
of T at most `burst + rate x T` is granted, however many steps there are and in whichever order.

The formulas run in two ways: on Z3's terms, where the proof is, and on integers, where they make the cases of
`crates/limit/tests/proved.tsv`. A test of the crate reads these and compares its own results: the proof is about the code that runs.

Amounts are in unit-microseconds: a microsecond adds `n`, a unit costs `p`. Z3 treats them as real numbers, which the integers are
among; that a wait is a whole number is said where it matters.
"""

import random
from math import gcd
from pathlib import Path
from types import SimpleNamespace

CASES = Path(__file__).resolve().parent.parent / "crates/limit/tests/proved.tsv"
# Everything that a bucket of the process can reach stays below this (LOCAL_BOUND); products are taken below 2^63.
BOUND, I64 = 1 << 62, 1 << 63


class Integers:
    """The formulas on integers."""

    where = staticmethod(lambda condition, then, otherwise: then if condition else otherwise)
    wait = staticmethod(lambda missing, n: max(-(-missing // n), 0))
    is_over = staticmethod(lambda elapsed, wait: elapsed >= wait)

    def least(self, a, b):
        return self.where(a <= b, a, b)

    def most(self, a, b):
        return self.where(a >= b, a, b)


# --- the formulas ---


def refilled(o, b, level, elapsed):
    """`TokenBucket::level`"""
    to_full = o.wait(b.full - level, b.n)
    return o.where(level >= b.full, b.full, o.where(o.is_over(elapsed, to_full), b.full, level + elapsed * b.n))


def need(o, b, price):
    """`TokenBucket::price`: the level that grants it."""
    return o.most(price - b.owed, 0)


def drawn(o, b, level, price):
    """`TokenBucket::judge` on a refilled level: whether it is granted, the level after it, and the time to wait."""
    granted = level >= need(o, b, price)
    return granted, o.where(granted, level - price, level), o.wait(need(o, b, price) - level, b.n)


def charged(o, b, level, more):
    """`TokenBucket::settle`, a charge on a refilled level."""
    return o.least(o.most(level - more, b.floor), level)


def refunded(o, b, level, units):
    """`TokenBucket::settle`, a refund on a refilled level."""
    return o.least(level + units, b.full)


def room(b, out):
    """`lease::cap`: where refilling stops while this much is leased."""
    return b.full - out


def grown(o, b, level, out, elapsed):
    """`lease::grown`"""
    to_room = o.wait(room(b, out) - level, b.n)
    return o.where(level >= room(b, out), level, o.where(o.is_over(elapsed, to_room), room(b, out), level + elapsed * b.n))


def leased_refunded(o, b, level, out, units):
    """`Leased::settle`, a refund; `Leased::give_back` does the same with what is left of a lease that no longer counts."""
    return o.least(level + units, o.most(room(b, out), level))


# --- the same on integers: cases for the crate's test ---


def bucket(n, p, burst, debt):
    full, owed = burst * p, debt * p
    return SimpleNamespace(n=n, p=p, full=full, owed=owed, floor=-max(owed, min(full, BOUND - 1 - full)))


def cases(count=400, seed=37):
    """Lines of numbers: the step, the bucket, the state, the argument, and what comes of it."""
    rng, o, lines = random.Random(seed), Integers(), ["step n p burst debt out level elapsed units granted wait after".split()]
    while len(lines) <= count:
        n, p = (rng.randint(1, 10 ** rng.randint(0, 6)) for _ in range(2))
        burst = rng.randint(1, 10 ** rng.randint(0, 9))
        debt = rng.choice([0, 0, rng.randint(0, burst)])
        if gcd(n, p) != 1 or burst * p < n or (burst + debt) * p >= BOUND:
            continue
        b, step = bucket(n, p, burst, debt), rng.choice(["draw", "charge", "refund", "lease_draw", "lease", "give_back", "lease_charge", "lease_refund"])
        is_leased = "lease" in step or step == "give_back"
        out = rng.randint(1, burst) if is_leased else 0
        b = bucket(n, p, burst, 0) if is_leased else b
        level = rng.choice([b.full, rng.randint(b.floor, b.full), rng.randint(0, b.full), rng.randint(0, min(3 * p, b.full))]) - out * p
        elapsed = rng.choice([0, 1, rng.randint(0, 10**7), rng.randint(0, 2 * b.full // n)])
        units = rng.choice([0, 1, rng.randint(0, burst), rng.randint(0, 2 * burst)]) if not is_leased else rng.randint(0, out)
        price, granted, wait = units * p, 1, 0
        before = grown(o, b, level, out * p, elapsed) if is_leased else refilled(o, b, level, elapsed)
        whole = max(before, 0) // p
        if step == "draw":
            if units > burst + debt:
                continue
            granted, after, wait = drawn(o, b, before, price)
        elif step == "charge":
            after = charged(o, b, before, price)
        elif step == "refund":
            after = refunded(o, b, before, price)
        elif step == "lease_draw":
            granted, after = (1, before - price) if units <= whole else (0, before)
        elif step == "lease":
            granted = min(units, whole)
            after = before - granted * p
        elif step == "give_back":
            after = leased_refunded(o, b, before, 0, price)
        elif step == "lease_charge":
            after = charged(o, b, before, price)
        else:
            after = leased_refunded(o, b, before, out * p, price)
        lines.append([step, n, p, burst, b.owed // p, out, level, elapsed, units, int(granted), wait, after])
    return "".join("\t".join(map(str, line)) + "\n" for line in lines)


# --- the same on Z3's terms: the steps ---


def steps():
    """By name: what is assumed, and what must follow. `wrong` are designs with one guard less: what must follow does not."""
    import z3

    class Terms(Integers):
        def __init__(self):
            self.known = []

        where = staticmethod(z3.If)

        def wait(self, missing, n):
            """The least whole number of microseconds in which `missing` is gained."""
            wait = z3.FreshReal("wait")
            self.known += [wait >= 0, z3.If(missing <= 0, wait == 0, z3.And((wait - 1) * n < missing, missing <= wait * n))]
            return wait

        def is_over(self, elapsed, wait):
            """Both are whole numbers: what is less is less by one."""
            self.known.append(z3.Or(elapsed >= wait, elapsed <= wait - 1))
            return elapsed >= wait

    b = SimpleNamespace(**{name: z3.Real(name) for name in ("n", "p", "full", "owed", "floor")})
    level, elapsed, price, more, units, left, out, held, cap = z3.Reals("level elapsed price more units left out held cap")
    # `Quota::new` and `TokenBucket::new`: what the file may say.
    numbers = [b.n >= 1, b.p >= 1, b.full >= b.p, b.full >= b.n, b.owed >= 0, b.full + b.owed < BOUND]
    numbers += [b.floor <= -b.owed, b.floor > b.full - BOUND]
    reached = [level <= b.full, level >= b.floor]
    one = [elapsed >= 0, price >= 0, more >= 0, units >= 0]
    # Of a bucket with leases: `out` is what the store counts, `held` is what gateways may still grant of it.
    leases = [b.owed == 0, out >= 0, held >= 0, held <= out, level + out <= b.full, level >= b.floor]
    proved, wrong = {}, {}

    def step(into, name, assumed, follows):
        o = Terms()
        into[name] = (numbers + one + assumed, o.known, follows(o))

    def follows_refill(o):
        after = refilled(o, b, level, elapsed)
        return [after <= b.full, after >= level, after - level <= b.n * elapsed, after >= b.floor]

    def product_fits(o):
        to_full = o.wait(b.full - level, b.n)
        return [z3.Or(o.is_over(elapsed, to_full), z3.And(elapsed * b.n < BOUND, level + elapsed * b.n < I64)), b.full - level < BOUND]

    def follows_draw(o):
        granted, after, wait = drawn(o, b, level, price)
        missing = need(o, b, price) - level
        return [
            z3.Implies(granted, z3.And(after == level - price, after >= z3.If(level < 0, level, -b.owed), wait == 0)),
            z3.Implies(z3.Not(granted), z3.And(after == level, wait * b.n >= missing, (wait - 1) * b.n < missing)),
            after >= b.floor,
        ]

    def follows_charge(o):
        after = charged(o, b, level, more)
        return [after <= level, after >= b.floor, z3.Or(after == level - more, after == b.floor)]

    def follows_refund(o):
        after = refunded(o, b, level, units)
        return [after <= b.full, after - level <= units]

    step(proved, "time refills at the rate, up to the burst", reached, follows_refill)
    step(proved, "no product overflows", reached, product_fits)
    step(proved, "a grant takes its price, a refusal nothing, and its wait is exact", reached + [price <= b.full + b.owed], follows_draw)
    step(proved, "a charge lowers, as far as the floor", reached, follows_charge)
    step(proved, "a refund raises by no more than its units, up to the burst", reached, follows_refund)

    # Phi of a bucket with leases is `level + held`.
    def kept(level_after, out_after, held_after, risen):
        return [held_after >= 0, held_after <= out_after, level_after + out_after <= b.full, level_after + held_after - level - held <= risen]

    step(proved, "leases: time refills up to the room that they leave", leases, lambda o: kept(grown(o, b, level, out, elapsed), out, held, b.n * elapsed))
    step(proved, "leases: a gateway grants of what it holds", leases + [price <= held], lambda o: kept(level, out, held - price, -price))
    step(proved, "leases: the store grants", leases + [price <= level], lambda o: kept(level - price, out, held, -price))
    step(proved, "leases: units are leased", leases + [units <= level], lambda o: kept(level - units, out + units, held + units, 0))
    # Of a lease of `units` a gateway returns `left` and holds none of it any more; the rest of `held` is in the other leases.
    ended = leases + [units <= out, left >= 0, left <= units, left <= held, held - left <= out - units]
    step(proved, "leases: one is given back", ended, lambda o: kept(leased_refunded(o, b, level, out - units, left), out - units, held - left, 0))
    step(proved, "leases: one expires", ended, lambda o: kept(level, out - units, held - left, 0))
    step(proved, "leases: a charge", leases, lambda o: kept(charged(o, b, level, more), out, held, 0))
    step(proved, "leases: a refund", leases, lambda o: kept(leased_refunded(o, b, level, out, units), out, held, units))

    # The ledger keeps sums. One gateway is seen alone (`mine` of `counted`), all others together (`held` of `out`).
    mine, counted = z3.Reals("mine counted")
    ledger = [b.owed == 0, 0 <= mine, mine <= counted, 0 <= held, held <= out, level + counted + out <= b.full, level >= b.floor]

    def summed(level_after, mine_after, counted_after, out_after, risen):
        return [
            0 <= mine_after, mine_after <= counted_after, held <= out_after, level_after + counted_after + out_after <= b.full,
            level_after + mine_after - level - mine <= risen,
        ]

    gone = [0 <= left, left <= units, units <= counted, left <= mine, mine - left <= counted - units]
    step(proved, "ledger: time refills up to the room", ledger, lambda o: summed(grown(o, b, level, counted + out, elapsed), mine, counted, out, b.n * elapsed))
    step(proved, "ledger: a gateway grants of what it holds", ledger + [price <= mine], lambda o: summed(level, mine - price, counted, out, -price))
    step(proved, "ledger: units are leased", ledger + [units <= level], lambda o: summed(level - units, mine + units, counted + units, out, 0))
    step(proved, "ledger: a return is taken", ledger + gone,
         lambda o: summed(leased_refunded(o, b, level, counted - units + out, left), mine - left, counted - units, out, 0))
    step(proved, "ledger: a return is lost", ledger + gone, lambda o: summed(level, mine - left, counted, out, 0))
    step(proved, "ledger: a slot ends", ledger + gone, lambda o: summed(level, mine - left, counted - units, out, 0))
    step(wrong, "ledger: units that are carried to a gateway and not counted", ledger + [units <= level],
         lambda o: summed(level - units, mine + units, counted, out, 0))
    # The second one finds the slot as full as the others' units make it.
    step(wrong, "ledger: a return that is sent twice", ledger + gone + [units <= out],
         lambda o: summed(leased_refunded(o, b, level, counted - units + out, left), mine - left, counted - units, out - units, 0))

    step(wrong, "refilled above the burst", reached, lambda o: [level + elapsed * b.n <= b.full])
    step(wrong, "refunded above the burst", reached, lambda o: [level + units <= b.full])
    step(wrong, "rounded up to whole units", reached, lambda o: [o.wait(elapsed * b.n, b.p) * b.p <= elapsed * b.n])
    back = z3.Real("back")
    step(wrong, "the moment follows a clock that is put back", reached + [back > 0, back <= elapsed],
         lambda o: [refilled(o, b, refilled(o, b, level, elapsed), back) - level <= b.n * elapsed])
    step(wrong, "two gateways decide on one reading", reached + [price > 0, price <= level], lambda o: [2 * price <= level])
    step(wrong, "multiplied before it is clamped", reached + [elapsed < I64], lambda o: [elapsed * b.n < I64])
    step(wrong, "a lease that is not counted against the burst", leases, lambda o: [refilled(o, b, level, elapsed) + held <= b.full])
    step(wrong, "a lease that the store forgets before its gateway", leases + [units > 0, units <= out], lambda o: [held <= out - units])
    step(wrong, "a return that is taken twice", ended, lambda o: [held - left <= out - 2 * units])
    return proved, wrong


def counter_example(assumed, known, follows):
    """Numbers for which it does not follow; `None`: there are none."""
    import z3

    solver = z3.Solver()
    solver.set("timeout", 60_000)
    solver.add(*assumed, *known, z3.Not(z3.And(*follows)))
    found = solver.check()
    assert found != z3.unknown, "Z3 gave up"
    return solver.model() if found == z3.sat else None


if __name__ == "__main__":
    CASES.write_text(cases())
