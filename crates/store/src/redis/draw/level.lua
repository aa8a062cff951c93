-- The arithmetic of one token bucket, with which both scripts begin: a translation of crates/limit/src/token_bucket.rs and of
-- what rescale.rs says of token buckets. A level is counted in fractions of a unit: a microsecond adds n, a unit is p.
--
-- All numbers are integers below 2^53, which Lua's doubles hold exactly. A product that leaves them is only ever compared with
-- one that does not, and rounding keeps order. Division goes through math.fmod, which is exact.

local fmod, min, max = math.fmod, math.min, math.max
-- A row: version and kind in one byte, fingerprint, n, p, full, until when it stands, level, at; then id, units and until
-- when it counts of each lease, the first to end first; last, as a lease of no units, the burst that the bucket has to fill
-- before it is forgotten.
local row, row_mark, row_len, row_lease, row_lease_len = '<BI7I7I7I7I7i7I7', 1, 50, '<I7I7I7', 21
-- 2^52, within which what is remembered stays.
local scaled_max = 4503599627370496
-- A bucket whose moment lies further ahead than this was written before the clock was put back: it is pulled to now, with the
-- units it has, instead of standing still until the clock has caught up. See crates/limit/src/rescale/ahead.rs.
local ahead_max = 1000000

-- Quotients of non-negative a by positive b, and rounded down for any a.
local function quotient(a, b) return (a - fmod(a, b)) / b end
local function quotient_up(a, b)
  local rest = fmod(a, b)
  if rest == 0 then return a / b end
  return (a - rest) / b + 1
end
local function quotient_down(a, b)
  if a >= 0 then return quotient(a, b) end
  return -quotient_up(-a, b)
end

-- The level `upto` a moment; refilling stops at `full`, or at what the leases leave room for. What is above that stays.
local function refilled(level, at, upto, n, full)
  if level >= full or upto <= at then return level end
  local gained = (upto - at) * n
  if gained >= full - level then return full end
  return level + gained
end

-- How a bucket that has leases ({ id, units, till }, the first to end first) or remembers stands at `now`: its level and
-- moment, the units that are still leased, and what it goes on remembering. A lease that has ended held the refilling back
-- until it did, and no longer; what time has brought beyond a full bucket is taken off what is remembered.
local function brought_to(now, level, at, n, p, full, leases, beyond)
  local out = 0
  for i = 1, #leases do out = out + leases[i][2] end
  for i = 1, #leases do
    local lease = leases[i]
    if lease[3] <= now then
      level = refilled(level, at, lease[3], n, full - out * p)
      at, out = max(at, lease[3]), out - lease[2]
    end
  end
  local room = full - out * p
  local after, wide = refilled(level, at, now, n, room), 0
  if beyond > 0 then
    local over = refilled(level, at, now, n, beyond * p) - max(after, room)
    wide = beyond - quotient(max(over, 0), p)
    if wide * p <= full then wide = 0 end
  end
  return after, max(at, now), out, wide
end

-- a * b / c rounded down, where a < c: digit by digit, where the product would leave the integers that doubles hold.
local function scaled(a, b, c)
  if a * b < 9007199254740992 then return quotient(a * b, c) end
  local bit, whole, rest = 4503599627370496, 0, 0
  while bit >= 1 do
    whole = whole * 2
    if rest >= c - rest then rest, whole = rest - (c - rest), whole + 1 else rest = rest + rest end
    if b >= bit then
      b = b - bit
      if rest >= c - a then rest, whole = rest - (c - a), whole + 1 else rest = rest + a end
    end
    bit = bit / 2
  end
  return whole
end

-- Changed numbers: the units as they stand with what is earned of the next one, rounded down, clamped, never added to,
-- leases counting against the new burst; and what is remembered of the old ones. Clamped before it is multiplied: a whole
-- unit below the lowest is the lowest.
local function renumbered(level, p_before, full_before, beyond, out, p, full, most, lowest)
  local units = quotient_down(level, p_before)
  if units < quotient_down(lowest, p) then
    level = lowest
  elseif units >= most then
    level = min(most * p, full)
  else
    level = max(min(units * p + scaled(level - units * p_before, p, p_before), full), lowest)
  end
  level = min(level, max(full - out * p, 0))
  local cut = max(units - quotient_down(level, p), 0)
  local wide = min(max(beyond, full_before / p_before) - cut, quotient(scaled_max, p))
  if wide * p <= full then wide = 0 end
  return level, wide
end

-- How many of `count` equal requests can pay one after the other, at once.
local function affordable(level, price, need, count)
  if level < need then return 0 end
  local spare = level - need
  if spare >= price * (count - 1) then return count end
  return quotient(spare, price) + 1
end

