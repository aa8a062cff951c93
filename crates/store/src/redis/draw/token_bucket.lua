-- Token bucket. Shape: n, p, full, owed, max_wait, floor, most, and of one that is leased the most units that may be, and
-- how long a lease counts (0: not leased). Fields: n, p, full, level, at, and the ledger: n and p of the last grant, full that of the largest burst. bucket.own has these numbers, and the lower floor of bucket and shape.
local function gain_time(shape, gain)
  if gain <= 0 then return 0 end
  return quotient_up(gain, shape.n)
end

-- Until when units count that are leased at a moment.
local function slot_end(at, counted) return quotient_up(at + counted, slot_width) * slot_width end

-- Counts units in a ledger until a moment.
local function count_until(ledger, till, units)
  local place = 1
  while ledger[place] and ledger[place][2] < till do place = place + 1 end
  if ledger[place] and ledger[place][2] == till then
    ledger[place][1] = ledger[place][1] + units
  else
    table.insert(ledger, place, { units, till })
  end
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
  pull = function(_, f)
    local far = f[5] - now > ahead_max
    if far then f[5] = now end
    local last, ledger, units = slot_end(now, counted_max), {}, 0
    for _, slot in ipairs(f.ledger or {}) do
      if slot[2] - last > ahead_max then units = units + slot[1] else ledger[#ledger + 1] = slot end
    end
    if units > 0 then
      count_until(ledger, last, units)
      f.ledger, far = ledger, true
    end
    return far
  end,
  load = function(bucket, shape, f)
    bucket.own, bucket.ledger, bucket.out, bucket.raw = shape, {}, 0, nil
    bucket.level, bucket.at, bucket.absent = shape.full, now, true
    if not f then return end
    local n, p, full, level, at = f[1], f[2], f[3], f[4], f[5]
    local ledger = f.ledger or {}
    local level_now, at_now, out = brought_to(now, level, at, n, p, full, ledger)
    for _, slot in ipairs(ledger) do
      if slot[2] > now then bucket.ledger[#bucket.ledger + 1] = slot end
    end
    bucket.out = out
    -- One that is full equals none, whose going would have made it full.
    if level_now >= full then return end
    local floor = shape.floor
    if n ~= shape.n or p ~= shape.p then
      floor = max(quotient_down(floor, shape.p) * p, full + 1 - exact)
      if #ledger == 0 then bucket.raw = f end
    end
    bucket.own = { n = n, p = p, full = full, max_wait = shape.max_wait, floor = min(floor, -min(full, exact - 1 - full)) }
    bucket.level, bucket.at, bucket.absent = level_now, at_now, false
  end,
  turn = function(bucket, shape)
    local from, level = bucket.own, bucket.level
    local wide = widest(from.p, from.full, shape.p, shape.full)
    if from.n ~= shape.n or from.p ~= shape.p then
      local raw = bucket.raw
      if raw and not bucket.corrected then
        level = under(level, raw[4], raw[5], now, from.p, shape.n, shape.p, wide)
      else
        level = converted(level, from.p, shape.p, wide)
      end
    end
    bucket.own = { n = shape.n, p = shape.p, full = wide }
    bucket.level = min(level, max(shape.full - bucket.out * shape.p, 0))
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
    local able = affordable(bucket.level, price, need, count)
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
  give_back = function(bucket, till, units, left)
    local own = bucket.own
    for place, slot in ipairs(bucket.ledger) do
      if slot[2] == till and slot[1] >= units then
        slot[1] = slot[1] - units
        if slot[1] == 0 then table.remove(bucket.ledger, place) end
        bucket.out = bucket.out - units
        bucket.level = min(bucket.level + min(left, units) * own.p, brim_of(bucket, own))
        return true
      end
    end
    return false
  end,
  lease = function(bucket, shape, asked, needed)
    if shape.leasable == 0 or #bucket.ledger >= slots_max then return 0 end
    local whole = quotient(max(bucket.level, 0), shape.p)
    local units = min(asked, quotient(whole, lease_parts), shape.leasable - bucket.out)
    -- One is what a request would draw.
    if units < 2 then units = 0 end
    units = max(units, min(needed, whole))
    if units == 0 then return 0 end
    bucket.level = bucket.level - units * shape.p
    bucket.out = bucket.out + units
    count_until(bucket.ledger, slot_end(bucket.at, shape.counted), units)
    return units
  end,
  store = function(bucket)
    local own = bucket.own
    if bucket.level >= own.full then return nil end
    local last = bucket.ledger[#bucket.ledger]
    local gone = max(bucket.at, last and last[2] or 0) + quotient_up(own.full - bucket.level, own.n)
    return { own.n, own.p, own.full, bucket.level, bucket.at, ledger = bucket.ledger }, gone
  end,
}
