-- Decides a whole batch of requests at one moment of the server's clock: for each request all its claims are charged,
-- or none. A translation of src/limit (token_bucket, lease, interval, fixed_window, sliding_window, sliding_log,
-- in_flight, and kept for buckets of several numbers); tests/conformance and tests/stores hold it to them.
--
-- KEYS      the distinct buckets of the batch
-- ARGV[1]   one msgpack array of integers:
--           version, pinned clock (0: TIME), gateway id, fingerprint, epoch start,
--           count of shapes, then 12 numbers for each: kind, drain and ten of the kind's own,
--           for each bucket the place of its shape,
--           count of leases given back, then for each: bucket, id, units left,
--           count of corrections, then for each: bucket, what, units,
--           count of groups, then for each: how many equal requests, count of claims, then bucket, cost, enforced,
--           count of wishes for a lease, then for each: bucket, id, units wished for, units that requests wait for
-- answer    one msgpack array: now, for each bucket a count and so many integers (its state before the requests and
--           after the corrections, in the numbers of its present shape; count 0: none, or full), for each group how many
--           were granted, for each wish how many units
--
-- All numbers are integers below 2^53, which Lua's doubles hold exactly. Division goes through math.fmod, which is
-- exact; '..' and tostring would keep 14 digits of a timestamp, so numbers reach redis.call through '%.0f' only.

local fmod, min, max = math.fmod, math.min, math.max
local pack, unpack_value = cmsgpack.pack, cmsgpack.unpack
-- A token bucket's row, which draw_bucket.lua shares: version and kind in one byte, fingerprint, n, p, full, until when
-- it stands, level, at; then id, units and until when it counts of each lease, the first to end first; last, as a lease
-- of no units, what it remembers. The other kinds' rows are msgpack, which does not begin with a one.
local row, row_mark, row_len, row_lease, row_lease_len = '<BI7I7I7I7I7i7I7', 1, 50, '<I7I7I7', 21
local leases_max, leases_most, lease_parts = 64, 512, 10
-- 2^53, below which doubles hold every integer, and 2^52.
local exact, scaled_max = 9007199254740992, 4503599627370496

local input = unpack_value(ARGV[1])
if input[1] ~= 2 then
  return redis.error_reply('TOLLGATE this script speaks version 2 of its arguments')
end
local now, me, fingerprint, epoch = input[2], input[3], input[4], input[5]
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

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

-- Each kind: load(bucket, shape, fields) makes the state from what was stored (nil: afresh), in the numbers it was
-- stored under (bucket.own; the shape itself, where they are the same or the bucket is full), spent(shape, at) is what a
-- bucket used up at that moment would have stored, drained(bucket) empties it, settle(bucket, what, units) corrects,
-- turn(bucket, shape) makes the shape's numbers its own: units as they stand, clamped, never added to; what a larger
-- burst would still miss it remembers (bucket.beyond, see src/limit/kept.rs). seen(bucket) lists it, afford(bucket,
-- shape, cost, n) says how many of n equal requests can pay one after the other, take(bucket, shape, cost, n) charges
-- them, store(bucket) returns the fields to keep and when they may go (nil: now).
local kinds = {}

-- Token bucket. Shape: n, p, full, owed, max_wait, floor, most, and of one that is leased the most units that may be, and
-- how long a lease counts (0: not leased). Fields: n, p, full, level, at, and the leases there are.
local function gain_time(shape, gain)
  if gain <= 0 then return 0 end
  return quotient_up(gain, shape.n)
end

-- The level `upto` a moment; refilling stops at the brim, or at what the leases leave room for.
local function refilled(level, at, upto, n, brim)
  if level >= brim then return level end
  local to_brim = quotient_up(brim - level, n)
  local elapsed = upto - at
  if elapsed < 0 then elapsed = 0 end
  -- Clamped before it is multiplied: nothing leaves 53 bits.
  if elapsed >= to_brim then return brim end
  return level + elapsed * n
end

-- What the leases leave room for; what is above that stays.
local function brim_of(bucket, own)
  return max(bucket.level, own.full - bucket.out * own.p)
end

kinds[1] = {
  shape = function(s)
    return {
      n = s[1], p = s[2], full = s[3], owed = s[4], max_wait = s[5], floor = s[6], most = s[7],
      leasable = s[8], counted = s[9],
    }
  end,
  load = function(bucket, shape, f)
    bucket.own, bucket.leases, bucket.out, bucket.beyond = shape, {}, 0, 0
    if not f then
      bucket.level, bucket.at, bucket.absent = shape.full, now, true
      return
    end
    local n, p, full, level, at = f[1], f[2], f[3], f[4], f[5]
    if n ~= shape.n or p ~= shape.p or full ~= shape.full then
      bucket.own = { n = n, p = p, full = full, max_wait = shape.max_wait, floor = -min(full, exact - 1 - full) }
    end
    if f.leases then
      for _, lease in ipairs(f.leases) do bucket.out = bucket.out + lease[2] end
      -- Each that has ended held the refilling back until it did, and no longer.
      for _, lease in ipairs(f.leases) do
        if lease[3] <= now then
          level = refilled(level, at, lease[3], n, full - bucket.out * p)
          at = max(at, lease[3])
          bucket.out = bucket.out - lease[2]
        else
          bucket.leases[#bucket.leases + 1] = lease
        end
      end
    end
    local brim = full - bucket.out * p
    bucket.at = max(at, now)
    bucket.level = refilled(level, at, now, n, brim)
    if f.beyond then
      -- What time has brought beyond the brim is made good.
      local over = refilled(level, at, now, n, f.beyond * p) - max(bucket.level, brim)
      local wide = f.beyond - quotient(max(over, 0), p)
      if wide * p > full then bucket.beyond = wide end
    end
    if bucket.level >= full and bucket.beyond == 0 then
      -- One that is full equals none, whose going would have made it full.
      bucket.own, bucket.level, bucket.absent = shape, shape.full, true
    end
  end,
  turn = function(bucket, shape)
    local from = bucket.own
    bucket.own = shape
    -- Whole units. Clamped before it is multiplied: a whole unit below the lowest is the lowest.
    local units = quotient_down(bucket.level, from.p)
    local lowest = min(shape.floor, -shape.owed - shape.max_wait * shape.n)
    local level
    if units <= quotient_down(lowest, shape.p) then
      level = lowest
    else
      level = min(min(units, shape.most) * shape.p, shape.full)
    end
    -- Leases stand as they are, and count against the new burst.
    bucket.level = min(level, max(shape.full - bucket.out * shape.p, 0))
    local cut = max(units - quotient_down(bucket.level, shape.p), 0)
    local wide = min(max(bucket.beyond, quotient(from.full, from.p)) - cut, quotient(scaled_max, shape.p))
    bucket.beyond = 0
    if wide * shape.p > shape.full then bucket.beyond = wide end
    bucket.absent = bucket.level >= shape.full and bucket.beyond == 0
  end,
  drained = function(bucket)
    bucket.level, bucket.absent = min(bucket.level, 0), false
  end,
  spent = function(shape, at) return { shape.n, shape.p, shape.full, 0, at } end,
  seen = function(bucket) return { bucket.level, bucket.at } end,
  afford = function(bucket, shape, cost, count)
    if cost > shape.most then return 0 end
    local price = cost * shape.p
    local need = max(price - shape.owed, 0)
    local able = 0
    if bucket.level >= need then
      if price == 0 then return count end
      able = min(count, quotient(bucket.level - need, price) + 1)
    end
    if able == count or shape.max_wait == 0 then return able end
    -- Shaping: one after the other, as each wait rounds up to a whole microsecond.
    local level, back = bucket.level - able * price, bucket.at - now
    while able < count do
      local wait = gain_time(shape, need - level) + back
      if wait > shape.max_wait then break end
      local gained = (wait - back) * shape.n
      level = min(level + gained, shape.full) - price - gained
      able = able + 1
      if price == 0 then return count end
    end
    return able
  end,
  take = function(bucket, shape, cost, count)
    local price = cost * shape.p
    local need = max(price - shape.owed, 0)
    local level, back = bucket.level, bucket.at - now
    if shape.max_wait == 0 then
      level = level - price * count
    else
      for _ = 1, count do
        local gained = 0
        if level < need then gained = gain_time(shape, need - level) * shape.n end
        level = min(level + gained, shape.full) - price - gained
      end
    end
    bucket.level = level
  end,
  settle = function(bucket, what, units)
    local level, own = bucket.level, bucket.own
    -- No more than leads from brim to floor, or to where other numbers' debt has led: the product stays within 53 bits.
    local worth = min(units, quotient_up(own.full - min(own.floor, level), own.p)) * own.p
    if what == 1 then
      bucket.level = min(max(level - worth, own.floor), level)
    elseif what == 2 and (level >= 0 or own.max_wait == 0) then
      bucket.level = min(level + worth, brim_of(bucket, own))
    end
  end,
  give_back = function(bucket, id, left)
    local own = bucket.own
    for place, lease in ipairs(bucket.leases) do
      if lease[1] == id then
        table.remove(bucket.leases, place)
        bucket.out = bucket.out - lease[2]
        bucket.level = min(bucket.level + min(left, lease[2]) * own.p, brim_of(bucket, own))
        return true
      end
    end
    return false
  end,
  lease = function(bucket, shape, id, wished, needed)
    if shape.leasable == 0 or #bucket.leases >= leases_most then return 0 end
    local whole = quotient(max(bucket.level, 0), shape.p)
    local units = min(wished, quotient(whole, lease_parts), shape.leasable - bucket.out)
    -- One is what a request would draw. Where many are out, only what requests wait for is leased.
    if units < 2 or #bucket.leases >= leases_max then units = 0 end
    units = max(units, min(needed, whole))
    if units == 0 then return 0 end
    bucket.level = bucket.level - units * shape.p
    bucket.out = bucket.out + units
    local till = now + shape.counted
    local place = #bucket.leases + 1
    while place > 1 and bucket.leases[place - 1][3] > till do place = place - 1 end
    table.insert(bucket.leases, place, { id, units, till })
    return units
  end,
  store = function(bucket)
    local own = bucket.own
    if bucket.level >= own.full and bucket.beyond == 0 then return nil end
    local last = bucket.leases[#bucket.leases]
    local missing = max(own.full, bucket.beyond * own.p) - bucket.level
    local gone = max(bucket.at, last and last[3] or 0) + quotient_up(missing, own.n)
    return { own.n, own.p, own.full, bucket.level, bucket.at, leases = bucket.leases, beyond = bucket.beyond }, gone
  end,
}

-- Interval buckets and fixed windows. Shape: amount, burst, period, align (0 first hit, 1 clock, 2 calendar), debt,
-- max_wait, and four calendar boundaries around now. Fields: amount, burst, period, align, units, since.
local function start_of(shape, at)
  if shape.align == 0 then return at end
  if shape.align == 1 then return at - fmod(at, shape.period) end
  local start = 0
  for i = 1, 4 do
    if shape.edges[i] <= at then start = shape.edges[i] end
  end
  return start
end

local function steps_between(shape, align, period, since, at)
  if align ~= 2 then return quotient(max(at - since, 0), period) end
  -- A step begun before the first boundary listed has seen at least all that are listed and past.
  local steps = 0
  for i = 1, 4 do
    if shape.edges[i] > since and shape.edges[i] <= at then steps = steps + 1 end
  end
  return steps
end

local function boundary(shape, since, steps)
  if shape.align ~= 2 then return since + shape.period * steps end
  for i = 1, 4 do
    if shape.edges[i] > since then
      steps = steps - 1
      if steps == 0 then return shape.edges[i] end
    end
  end
  return shape.edges[4] + shape.period * steps
end

local function steps_now(shape, amount, burst, period, align, units, since)
  local passed = steps_between(shape, align, period, since, now)
  if units >= burst or passed >= quotient_up(burst - units, amount) then return burst, nil end
  local start = since
  if passed > 0 then
    start = since + period * passed
    if align == 2 then start = start_of(shape, now) end
  end
  return units + passed * amount, start
end

local stepped = {
  shape = function(s)
    return {
      amount = s[1], burst = s[2], period = s[3], align = s[4], debt = s[5], max_wait = s[6],
      edges = { s[7], s[8], s[9], s[10] }, floor = -max(s[2], s[5]),
    }
  end,
  load = function(bucket, shape, f)
    bucket.own, bucket.units, bucket.since, bucket.beyond = shape, shape.burst, nil, 0
    if f then
      local amount, burst, period, align, beyond = f[1], f[2], f[3], f[4], f[7] or 0
      if amount ~= shape.amount or burst ~= shape.burst or period ~= shape.period or align ~= shape.align then
        -- The calendar of then is not kept; the present one stands in for it, if there is one.
        if align == 2 and shape.align ~= 2 then align = 0 end
        bucket.own = {
          amount = amount, burst = burst, period = period, align = align, debt = 0, max_wait = shape.max_wait,
          edges = shape.edges, floor = -burst,
        }
      end
      bucket.units, bucket.since = steps_now(bucket.own, amount, burst, period, align, f[5], f[6])
      if shape.kind == kinds[3] then
        if beyond > now then bucket.beyond = beyond end
      elseif beyond > burst then
        -- What steps have brought beyond the brim is made good.
        local passed = steps_between(bucket.own, align, period, f[6], now)
        local over = min(f[5] + min(passed, quotient_up(beyond - f[5], amount)) * amount, beyond) - burst
        beyond = beyond - max(over, 0)
        if beyond > burst then bucket.beyond = beyond end
      end
    end
    if bucket.units >= bucket.own.burst and bucket.beyond == 0 then
      bucket.own, bucket.units, bucket.since, bucket.absent = shape, shape.burst, nil, true
    end
    bucket.since = bucket.since or start_of(bucket.own, now)
  end,
  turn = function(bucket, shape)
    local from, units, since = bucket.own, bucket.units, bucket.since
    bucket.own = shape
    -- The units as they stand, clamped, never added to; the step goes on where it can.
    local goes_on = (from.align == shape.align and from.period == shape.period)
      or (shape.align == 0 and steps_between(shape, 0, shape.period, since, now) == 0)
    bucket.units = min(max(units, shape.floor), shape.burst)
    if not goes_on or bucket.units >= shape.burst then bucket.since = start_of(shape, now) end
    if shape.kind == kinds[3] then
      local till = bucket.beyond
      if units < from.burst then
        till = max(till, boundary(from, since, quotient_up(from.burst - units, from.amount)))
      end
      bucket.beyond = till > now and till or 0
    else
      local wide = max(bucket.beyond, from.burst) - max(units - bucket.units, 0)
      bucket.beyond = wide > shape.burst and wide or 0
    end
    bucket.absent = bucket.units >= shape.burst and bucket.beyond == 0
  end,
  drained = function(bucket)
    bucket.units, bucket.absent = min(bucket.units, 0), false
  end,
  spent = function(shape, at)
    return { shape.amount, shape.burst, shape.period, shape.align, 0, start_of(shape, at) }
  end,
  seen = function(bucket) return { bucket.units, bucket.since } end,
  afford = function(bucket, shape, cost, count)
    if cost > shape.burst + shape.debt then return 0 end
    local need = max(cost - shape.debt, 0)
    local units, able = bucket.units, 0
    if units >= need then
      if cost == 0 then return count end
      able = min(count, quotient(units - need, cost) + 1)
    end
    if able == count or shape.max_wait == 0 then return able end
    units = units - able * cost
    while able < count do
      local steps = quotient_up(need - units, shape.amount)
      if boundary(shape, bucket.since, steps) - now > shape.max_wait then break end
      if cost == 0 then return count end
      local gained = steps * shape.amount
      units = min(units + gained, shape.burst) - cost - gained
      able = able + 1
    end
    return able
  end,
  take = function(bucket, shape, cost, count)
    local need = max(cost - shape.debt, 0)
    for _ = 1, count do
      local gained = 0
      if bucket.units < need then gained = quotient_up(need - bucket.units, shape.amount) * shape.amount end
      bucket.units = min(bucket.units + gained, shape.burst) - cost - gained
    end
  end,
  settle = function(bucket, what, units)
    local own = bucket.own
    if what == 1 then
      bucket.units = min(max(bucket.units - units, own.floor), bucket.units)
    elseif what == 2 and (bucket.units >= 0 or own.max_wait == 0) then
      bucket.units = min(bucket.units + units, own.burst)
    end
  end,
  store = function(bucket)
    local own, gone, top = bucket.own, now, bucket.own.burst
    if bucket.units >= top and bucket.beyond == 0 then return nil end
    if bucket.shape.kind == kinds[3] then gone = bucket.beyond else top = max(top, bucket.beyond) end
    if bucket.units < top then
      gone = max(gone, boundary(own, bucket.since, quotient_up(top - bucket.units, own.amount)))
    end
    return { own.amount, own.burst, own.period, own.align, bucket.units, bucket.since, bucket.beyond }, gone
  end,
}
kinds[2], kinds[3] = stepped, {}
for name, part in pairs(stepped) do kinds[3][name] = part end

-- The two-window estimate. Shape: amount, period, most. Fields: amount, period, start, previous, current.
local function pair_now(period, start, previous, current)
  local passed = quotient(max(now - start, 0), period)
  if passed == 0 then return start, previous, current end
  if passed == 1 then return start + period, current, 0 end
  return now - fmod(now, period), 0, 0
end

kinds[4] = {
  shape = function(s) return { amount = s[1], period = s[2], most = s[3] } end,
  load = function(bucket, shape, f)
    bucket.own, bucket.beyond = shape, 0
    local start, previous, current = now - fmod(now, shape.period), 0, 0
    if f then
      local amount, period = f[1], f[2]
      if amount ~= shape.amount or period ~= shape.period then
        bucket.own = { amount = amount, period = period, most = min(2 * amount, quotient(exact - 1, period)) }
      end
      start, previous, current = pair_now(period, f[3], f[4], f[5])
      if (f[6] or 0) > now then bucket.beyond = f[6] end
    end
    if previous == 0 and current == 0 and bucket.beyond == 0 then
      bucket.own, bucket.absent = shape, true
      start = now - fmod(now, shape.period)
    end
    bucket.start, bucket.previous, bucket.current = start, previous, current
  end,
  turn = function(bucket, shape)
    local from = bucket.own
    bucket.own = shape
    if bucket.current > 0 then
      bucket.beyond = max(bucket.beyond, bucket.start + 2 * from.period)
    elseif bucket.previous > 0 then
      bucket.beyond = max(bucket.beyond, bucket.start + from.period)
    end
    if bucket.beyond <= now then bucket.beyond = 0 end
    -- The units left stay, clamped; what is used counts as of now, in one window.
    local weighted = quotient_up(bucket.previous * (from.period - max(now - bucket.start, 0)), from.period)
    bucket.current = shape.amount - min(max(from.amount - bucket.current - weighted, 0), shape.amount)
    bucket.start, bucket.previous = now - fmod(now, shape.period), 0
    bucket.absent = bucket.current == 0 and bucket.beyond == 0
  end,
  drained = function(bucket)
    bucket.current, bucket.absent = max(bucket.current, bucket.own.amount), false
  end,
  spent = function(shape, at) return { shape.amount, shape.period, at - fmod(at, shape.period), 0, shape.amount } end,
  seen = function(bucket) return { bucket.start, bucket.previous, bucket.current } end,
  afford = function(bucket, shape, cost, count)
    if cost > shape.amount then return 0 end
    -- previous x left <= room x period, so the room must be this at least.
    local left = shape.period - max(now - bucket.start, 0)
    local room = shape.amount - bucket.current - quotient_up(bucket.previous * left, shape.period)
    if room < cost then return 0 end
    if cost == 0 then return count end
    return min(count, quotient(room, cost))
  end,
  take = function(bucket, _, cost, count) bucket.current = bucket.current + cost * count end,
  settle = function(bucket, what, units)
    if what == 1 then
      bucket.current = min(bucket.current + units, max(bucket.own.most, bucket.current))
    elseif what == 2 then
      local rest = max(units - bucket.current, 0)
      bucket.current = max(bucket.current - units, 0)
      bucket.previous = max(bucket.previous - rest, 0)
    end
  end,
  store = function(bucket)
    local own, gone = bucket.own, bucket.beyond
    if bucket.current > 0 then
      gone = max(gone, bucket.start + 2 * own.period)
    elseif bucket.previous > 0 then
      gone = max(gone, bucket.start + own.period)
    end
    if gone == 0 then return nil end
    return { own.amount, own.period, bucket.start, bucket.previous, bucket.current, bucket.beyond }, gone
  end,
}

-- The sliding log. Shape: amount, period, max_wait. Fields: amount, period, then moment and units of each grant.
local function counted(log, period, from)
  local sum = 0
  for i = 1, #log, 2 do
    if from - log[i] < period then sum = sum + log[i + 1] end
  end
  return sum
end

local function from_of(log)
  if #log == 0 then return now end
  return max(log[#log - 1], now)
end

local function remember(log, period, at, units)
  if units == 0 then return log end
  local kept, first = log, 1
  while first < #log and at - log[first] >= period do first = first + 2 end
  if first > 1 then
    kept = {}
    for i = first, #log do kept[#kept + 1] = log[i] end
  end
  if #kept > 0 and kept[#kept - 1] == at then
    kept[#kept] = kept[#kept] + units
  else
    kept[#kept + 1] = at
    kept[#kept + 1] = units
  end
  return kept
end

-- When a grant of `cost` would be due; nil: not within max_wait.
local function due_at(log, shape, cost)
  if cost > shape.amount then return nil end
  local spare = shape.amount - cost
  local from = from_of(log)
  local sum, due = counted(log, shape.period, from), from
  if sum > spare then
    for i = 1, #log, 2 do
      if from - log[i] < shape.period then
        sum = sum - log[i + 1]
        due = log[i] + shape.period
        if sum <= spare then break end
      end
    end
  end
  if due == from and shape.max_wait == 0 then return due end
  if due - now > shape.max_wait then return nil end
  return due
end

kinds[5] = {
  shape = function(s) return { amount = s[1], period = s[2], max_wait = s[3] } end,
  load = function(bucket, shape, f)
    local log = {}
    bucket.own, bucket.beyond = shape, 0
    if f then
      local amount, period, last = f[1], f[2], #f
      if amount ~= shape.amount or period ~= shape.period then
        bucket.own = { amount = amount, period = period, max_wait = shape.max_wait }
      end
      if last % 2 == 1 then
        if f[last] > now then bucket.beyond = f[last] end
        last = last - 1
      end
      for i = 3, last do log[i - 2] = f[i] end
      if bucket.beyond == 0 and (#log == 0 or now - log[#log - 1] >= period) then
        log, bucket.own = {}, shape
      end
    end
    bucket.log = log
    bucket.absent = #log == 0 and bucket.beyond == 0
  end,
  turn = function(bucket, shape)
    local own, log = bucket.own, bucket.log
    bucket.own = shape
    if #log > 0 then bucket.beyond = max(bucket.beyond, log[#log - 1] + own.period) end
    if bucket.beyond <= now then bucket.beyond = 0 end
    local from = from_of(log)
    local used = shape.amount - min(max(own.amount - counted(log, own.period, from), 0), shape.amount)
    local kept = {}
    if shape.period >= own.period then
      for i = 1, #log, 2 do
        if from - log[i] < own.period then
          kept[#kept + 1] = log[i]
          kept[#kept + 1] = log[i + 1]
        end
      end
    end
    bucket.log = remember(kept, shape.period, from, max(used - counted(kept, shape.period, from), 0))
    bucket.absent = #bucket.log == 0 and bucket.beyond == 0
  end,
  drained = function(bucket)
    local own, from = bucket.own, from_of(bucket.log)
    local room = max(own.amount - counted(bucket.log, own.period, from), 0)
    bucket.log, bucket.absent = remember(bucket.log, own.period, from, room), false
  end,
  spent = function(shape, at) return { shape.amount, shape.period, at, shape.amount } end,
  seen = function(bucket)
    local seen = {}
    for i = 1, #bucket.log do seen[i] = bucket.log[i] end
    return seen
  end,
  afford = function(bucket, shape, cost, count)
    if cost == 0 then return due_at(bucket.log, shape, 0) and count or 0 end
    local log = {}
    for i = 1, #bucket.log do log[i] = bucket.log[i] end
    for able = 0, count - 1 do
      local due = due_at(log, shape, cost)
      if not due then return able end
      log = remember(log, shape.period, due, cost)
    end
    return count
  end,
  take = function(bucket, shape, cost, count)
    for _ = 1, count do
      bucket.log = remember(bucket.log, shape.period, due_at(bucket.log, shape, cost), cost)
    end
  end,
  settle = function(bucket, what, units)
    local log, own = bucket.log, bucket.own
    local from = from_of(log)
    if what == 1 then
      local room = max(2 * own.amount - counted(log, own.period, from), 0)
      bucket.log = remember(log, own.period, from, min(units, room))
    elseif what == 2 and (from <= now or own.max_wait == 0) then
      local kept = {}
      for i = 1, #log, 2 do
        if from - log[i] < own.period then
          local back = min(log[i + 1], units)
          units = units - back
          if log[i + 1] > back then
            kept[#kept + 1] = log[i]
            kept[#kept + 1] = log[i + 1] - back
          end
        end
      end
      bucket.log = kept
    end
  end,
  store = function(bucket)
    local log, own, gone = bucket.log, bucket.own, bucket.beyond
    if #log == 0 and gone == 0 then return nil end
    local fields = { own.amount, own.period }
    for i = 1, #log do fields[i + 2] = log[i] end
    if #log > 0 then gone = max(gone, log[#log - 1] + own.period) end
    if bucket.beyond > 0 then fields[#fields + 1] = bucket.beyond end
    return fields, gone
  end,
}

-- Concurrency. Shape: most, ttl. Fields: holder, units, expiry, and so on; a holder that stops renewing is forgotten.
kinds[8] = {
  shape = function(s) return { most = s[1], ttl = s[2] } end,
  load = function(bucket, shape, f)
    local holders, held = {}, 0
    bucket.own = shape
    for i = 1, f and #f or 0, 3 do
      if f[i + 2] > now then
        holders[#holders + 1] = { f[i], f[i + 1], f[i + 2] }
        if f[i] == me then bucket.mine = holders[#holders] end
        held = held + f[i + 1]
      end
    end
    bucket.holders, bucket.held = holders, held
    bucket.absent = held == 0
  end,
  -- Places in flight are not grants: after a fail-over the heartbeats tell them anew.
  drained = function() end,
  spent = function() return nil end,
  seen = function(bucket) return { bucket.held } end,
  afford = function(bucket, shape, cost, count)
    if bucket.held + cost > shape.most then return 0 end
    if cost == 0 then return count end
    return min(count, quotient(shape.most - bucket.held, cost))
  end,
  take = function(bucket, shape, cost, count)
    local units = cost * count
    if not bucket.mine then
      bucket.mine = { me, 0, 0 }
      bucket.holders[#bucket.holders + 1] = bucket.mine
    end
    bucket.mine[2], bucket.mine[3] = bucket.mine[2] + units, now + shape.ttl
    bucket.held = bucket.held + units
  end,
  settle = function(bucket, what, units)
    local mine, shape = bucket.mine, bucket.own
    if what == 3 and mine then
      local freed = min(units, mine[2])
      mine[2], bucket.held = mine[2] - freed, bucket.held - freed
    elseif what == 4 then
      if not mine then
        mine = { me, 0, 0 }
        bucket.mine = mine
        bucket.holders[#bucket.holders + 1] = mine
      end
      bucket.held = bucket.held - mine[2] + units
      mine[2], mine[3] = units, now + shape.ttl
    end
  end,
  store = function(bucket)
    local fields, gone = {}, 0
    for _, holder in ipairs(bucket.holders) do
      if holder[2] > 0 then
        fields[#fields + 1], fields[#fields + 2], fields[#fields + 3] = holder[1], holder[2], holder[3]
        gone = max(gone, holder[3])
      end
    end
    if gone == 0 then return nil end
    return fields, gone
  end,
}

local place = 7
local shapes = {}
for i = 1, input[6] do
  local kind = kinds[input[place]]
  local numbers = {}
  for j = 1, 10 do numbers[j] = input[place + 1 + j] end
  local shape = kind.shape(numbers)
  shape.kind, shape.number, shape.drain = kind, input[place], input[place + 1]
  shapes[i] = shape
  place = place + 12
end

local stored
if #KEYS == 1 then
  stored = { redis.call('GET', KEYS[1]) }
else
  stored = redis.call('MGET', unpack(KEYS))
end

local answer = { now }
local last = 1
local buckets = {}
for i = 1, #KEYS do
  local shape = shapes[input[place] + 1]
  place = place + 1
  local bucket = { shape = shape, kind = shape.kind }
  local fields, print_of
  if stored[i] and #stored[i] >= row_len and string.byte(stored[i]) == row_mark then
    if shape.number == 1 then
      local _, print, n, p, full, _, level, at = struct.unpack(row, stored[i])
      print_of, fields = print, { n, p, full, level, at }
      if #stored[i] > row_len then
        fields.leases = {}
        for from = row_len + 1, #stored[i] - row_lease_len + 1, row_lease_len do
          local id, units, till = struct.unpack(row_lease, stored[i], from)
          if units > 0 then
            fields.leases[#fields.leases + 1] = { id, units, till }
          else
            fields.beyond = till
          end
        end
      end
    end
  elseif stored[i] then
    -- Stored: version, kind, fingerprint, fields.
    local fine, value = pcall(unpack_value, stored[i])
    if fine and type(value) == 'table' and value[1] == 1 and value[2] == shape.number then
      print_of = value[3]
      fields = {}
      for j = 4, #value do fields[j - 3] = value[j] end
    end
  end
  -- Another algorithm's: no correction is about it.
  bucket.foreign = stored[i] and not fields
  bucket.kind.load(bucket, shape, fields)
  if shape.drain == 1 then
    if fields then
      if print_of ~= fingerprint then bucket.kind.drained(bucket) end
    else
      -- Nothing is known of the time before the epoch: what has come back since is there, and no more.
      bucket.absent = nil
      bucket.kind.load(bucket, shape, bucket.kind.spent(shape, min(epoch, now)))
    end
  end
  buckets[i] = bucket
end

-- What a bucket's row is to be.
local function value_of(bucket)
  local fields, gone = bucket.kind.store(bucket)
  if not fields then return nil end
  if bucket.shape.number ~= 1 then
    local value = { 1, bucket.shape.number, fingerprint }
    for j = 1, #fields do value[3 + j] = fields[j] end
    return pack(value), gone
  end
  local n, p, full, level, at = unpack(fields)
  local parts = { struct.pack(row, row_mark, fingerprint, n, p, full, gone + 1000000, level, at) }
  for _, lease in ipairs(fields.leases) do parts[#parts + 1] = struct.pack(row_lease, lease[1], lease[2], lease[3]) end
  if fields.beyond > 0 then parts[#parts + 1] = struct.pack(row_lease, 0, 0, fields.beyond) end
  return table.concat(parts), gone
end

-- Corrections are about grants of the past, made under whichever numbers: they are settled in the bucket's own.
place = place + 1
for _ = 1, input[place - 1] do
  local bucket = buckets[input[place] + 1]
  if bucket.kind.give_back and bucket.kind.give_back(bucket, input[place + 1], input[place + 2]) then
    bucket.corrected = true
  end
  place = place + 3
end
place = place + 1
for _ = 1, input[place - 1] do
  local bucket = buckets[input[place] + 1]
  if not bucket.foreign then
    bucket.kind.settle(bucket, input[place + 1], input[place + 2])
    bucket.corrected = true
  end
  place = place + 3
end

-- Requests are decided in their own, which the bucket takes on when something is drawn.
for i = 1, #KEYS do
  local bucket = buckets[i]
  if bucket.corrected then
    bucket.value, bucket.gone = value_of(bucket)
    bucket.absent = not bucket.value
  end
  if bucket.own ~= bucket.shape then
    if bucket.absent then
      bucket.kind.load(bucket, bucket.shape, nil)
    else
      bucket.kind.turn(bucket, bucket.shape)
    end
  end
  if bucket.absent then
    last = last + 1
    answer[last] = 0
  else
    local seen = bucket.kind.seen(bucket)
    last = last + 1
    answer[last] = #seen
    for j = 1, #seen do answer[last + j] = seen[j] end
    last = last + #seen
  end
end

place = place + 1
for _ = 1, input[place - 1] do
  local granted, claims = input[place], input[place + 1]
  local first = place + 2
  place = first + 3 * claims
  for at = first, place - 3, 3 do
    if input[at + 2] == 1 and granted > 0 then
      local bucket = buckets[input[at] + 1]
      granted = min(granted, bucket.kind.afford(bucket, bucket.shape, input[at + 1], granted))
    end
  end
  if granted > 0 then
    for at = first, place - 3, 3 do
      local bucket, cost, taken = buckets[input[at] + 1], input[at + 1], granted
      -- Shadows are judged and charged in the same pass and never refuse.
      if input[at + 2] ~= 1 then taken = bucket.kind.afford(bucket, bucket.shape, cost, granted) end
      if taken > 0 and cost > 0 then
        bucket.kind.take(bucket, bucket.shape, cost, taken)
        bucket.drawn = true
      end
    end
  end
  last = last + 1
  answer[last] = granted
end

place = place + 1
for _ = 1, input[place - 1] do
  local bucket = buckets[input[place] + 1]
  local units = 0
  if bucket.kind.lease then
    units = bucket.kind.lease(bucket, bucket.shape, input[place + 1], input[place + 2], input[place + 3])
  end
  bucket.drawn = bucket.drawn or units > 0
  last = last + 1
  answer[last] = units
  place = place + 4
end

for i = 1, #KEYS do
  local bucket = buckets[i]
  if bucket.drawn then bucket.value, bucket.gone = value_of(bucket) end
  if bucket.value then
    -- It goes a second after it is full again, so that its going grants nothing.
    local life = quotient_up(max(bucket.gone - now, 1), 1000) + 1000
    redis.call('SET', KEYS[i], bucket.value, 'PX', string.format('%.0f', life))
  elseif stored[i] and (bucket.drawn or bucket.corrected) then
    redis.call('DEL', KEYS[i])
  end
end
return pack(answer)
