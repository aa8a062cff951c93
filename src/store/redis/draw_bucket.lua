-- The common case of draw.lua, at a third of its time: each bucket is a token bucket asked by one group of equal
-- requests, which nobody lets wait and no fail-over drains. The same rows, the same answers as the general script;
-- tests/stores holds both to src/limit/token_bucket.rs.
--
-- KEYS      the distinct buckets of the batch
-- ARGV[1]   little-endian: pinned clock (0: TIME) and fingerprint as doubles, a byte, the count of terms, then for each
--           seven doubles: n, p, full, price, need, most, lowest; for each bucket the place of its term in a byte and
--           how many requests in two
-- answer    little-endian: now as a double, for each bucket its level and moment before, as doubles, and how many were
--           granted, in two bytes
--
-- All numbers are integers below 2^53. A product that leaves them is only ever compared with one that does not, and
-- rounding keeps order.

local call, unpack_numbers, pack_numbers = redis.call, struct.unpack, struct.pack
local keys, input = KEYS, ARGV[1]
local total = #keys
-- As draw.lua's: version and kind in one byte, fingerprint, n, p, full, until when it stands; then level, at.
local row, row_mark, row_len, row_tail, row_head_len = '<BI7I7I7I7I7i7I7', 1, 50, '<i7I7', 36
-- Leases, which another gateway's configuration may know: units and until when they count, at these places.
local row_lease_len, row_lease = 21, '<I7I7'
-- Written to stand so much longer than it must, so that most writes leave its expiry alone.
local margin = 2000000

local now, fingerprint, terms = unpack_numbers('<ddB', input)
local pinned = now ~= 0
if not pinned then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Changed numbers: whole units as they stand, rounded down, clamped, never added to.
local function rescaled(level, p_before, p, full, most, lowest)
  local units = math.floor(level / p_before)
  -- The quotient may have been rounded up to a whole unit.
  if math.fmod(level, p_before) ~= 0 and units * p_before > level then units = units - 1 end
  if units <= math.floor(lowest / p) then return lowest end
  return math.min(math.min(units, most) * p, full)
end

-- The level of a bucket that is leased elsewhere: see draw.lua.
local function leased_level(value, level, at, n_before, p_before, full_before)
  local out, ends = 0, {}
  for from = row_len + 1, #value - row_lease_len + 1, row_lease_len do
    local units, till = unpack_numbers(row_lease, value, from + 7)
    out = out + units
    ends[#ends + 1] = { units, till }
  end
  local function refill(upto)
    local brim = full_before - out * p_before
    if level < brim and upto > at then level = math.min(level + (upto - at) * n_before, brim) end
    at = math.max(at, upto)
  end
  for i = 1, #ends do
    if ends[i][2] <= now then
      refill(ends[i][2])
      out = out - ends[i][1]
    end
  end
  refill(now)
  return level, at, out
end

local stored
if total == 1 then
  stored = { call('GET', keys[1]) }
else
  stored = call('MGET', unpack(keys))
end

local asked = { string.byte(input, 18 + 56 * terms, -1) }
local answer, last = {}, 0
local term, n, p, full, price, need, most, lowest
for i = 1, total do
  local place = 3 * i
  local count = asked[place - 1] + 256 * asked[place]
  if asked[place - 2] ~= term then
    term = asked[place - 2]
    n, p, full, price, need, most, lowest = unpack_numbers('<ddddddd', input, 18 + 56 * term)
  end
  local level, at, value, stands, leases = full, now, stored[i], 0, nil
  if value and #value >= row_len then
    local mark, print_before, n_before, p_before, full_before, till, level_before, at_before = unpack_numbers(row, value)
    if mark == row_mark then
      local gain, out = 0, 0
      if #value > row_len then
        leases = string.sub(value, row_len + 1)
        level_before, at, out = leased_level(value, level_before, at_before, n_before, p_before, full_before)
      elseif at_before > now then
        at = at_before
      else
        gain = (now - at_before) * n_before
      end
      local same = n_before == n and p_before == p and full_before == full
      if gain >= full_before - level_before then
        level = full
      elseif same then
        level = level_before + gain
      else
        level = rescaled(level_before + gain, p_before, p, full, most, lowest)
      end
      -- A pinned clock says nothing of how long the server keeps it.
      if same and print_before == fingerprint and not pinned then stands = till end
      if out > 0 then level = math.min(level, math.max(full - out * p, 0)) end
    end
  end

  local granted = 0
  if level >= need then
    local spare = level - need
    if spare >= price * (count - 1) then
      granted = count
    else
      granted = (spare - math.fmod(spare, price)) / price + 1
    end
  end
  answer[last + 1], answer[last + 2], answer[last + 3] = level, at, granted
  last = last + 3

  if granted > 0 then
    level = level - price * granted
    -- It goes a second after it is full again, so that its going grants nothing.
    local till = math.ceil((full - level) / n) + at + 1000000
    if till <= stands then
      call('SETRANGE', keys[i], row_head_len, pack_numbers(row_tail, level, at))
    else
      till = till + margin
      local kept = pack_numbers(row, row_mark, fingerprint, n, p, full, till, level, at)
      if leases then kept = kept .. leases end
      call('SET', keys[i], kept, 'PX', math.ceil((till - now) / 1000))
    end
  end
end
return pack_numbers('<d' .. string.rep('ddH', total), now, unpack(answer))
