-- The arithmetic of one token bucket, with which both scripts begin: a translation of crates/limit/src/token_bucket.rs and of
-- what kept.rs says of token buckets. A level is counted in fractions of a unit: a microsecond adds n, a unit is p.
--
-- All numbers are integers below 2^53, which Lua's doubles hold exactly. A product that leaves them is only ever compared with
-- one that does not, and rounding keeps order. Division goes through math.fmod, which is exact.

local fmod, min, max = math.fmod, math.min, math.max
-- A row: version and kind in one byte, fingerprint, n and p of the last grant, the level of a bucket that is full under the
-- largest burst it was drawn under, until when it stands, level, at; then its ledger: units that are leased, and until when they
-- count, of each slot that holds some, the first to end first.
local row, row_mark, row_len, row_slot, row_slot_len = '<BI7I7I7I7I7i7I7', 1, 50, '<I7I7', 14
-- 2^53, below which doubles hold every integer.
local exact = 9007199254740992
-- A bucket whose moment lies further ahead than this was written before the clock was put back: it is pulled to now, with the
-- units it has, instead of standing still until the clock has caught up. See crates/limit/src/kept/ahead.rs.
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

-- The ledger in a row: { units, till }, the first to end first.
local function ledger_in(value)
  local ledger = {}
  for from = row_len + 1, #value - row_slot_len + 1, row_slot_len do
    local units, till = struct.unpack(row_slot, value, from)
    ledger[#ledger + 1] = { units, till }
  end
  return ledger
end

-- How a bucket that has a ledger stands at `now`: its level and moment, and the units that are still leased. A slot that has
-- ended held the refilling back until it did, and no longer.
local function brought_to(now, level, at, n, p, full, ledger)
  local out = 0
  for i = 1, #ledger do out = out + ledger[i][1] end
  for i = 1, #ledger do
    local units, till = ledger[i][1], ledger[i][2]
    if till <= now then
      level = refilled(level, at, till, n, full - out * p)
      at, out = max(at, till), out - units
    end
  end
  return refilled(level, at, now, n, full - out * p), max(at, now), out
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

-- The level of a bucket that is full under the larger of two bursts, in the scale of the second, or as much of it as leaves
-- room to count debts exactly.
local function widest(p_before, full_before, p, full)
  return max(full, min(full_before / p_before, quotient(exact / 2, p)) * p)
end

-- A level in another scale, rounded down; clamped before it is multiplied.
local function converted(level, p_before, p, wide)
  local units, lowest = quotient_down(level, p_before), wide + 1 - exact
  if units < quotient_down(lowest, p) then return lowest end
  if units >= quotient(wide, p) then return wide end
  return max(units * p + scaled(level - units * p_before, p, p_before), lowest)
end

-- A level for a draw under other numbers: what has passed since the last grant counts at the higher of the two rates. `now_level`
-- is the level at `now` by the numbers of the last grant.
local function under(now_level, level, at, now, p_before, n, p, wide)
  return max(converted(now_level, p_before, p, wide), refilled(converted(level, p_before, p, wide), at, now, n, wide))
end

-- How many of `count` equal requests can pay one after the other, at once.
local function affordable(level, price, need, count)
  if level < need then return 0 end
  local spare = level - need
  if spare >= price * (count - 1) then return count end
  return quotient(spare, price) + 1
end

