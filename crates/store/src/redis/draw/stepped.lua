-- Interval buckets and fixed windows. Shape: amount, burst, period, align (0 first hit, 1 clock, 2 calendar), debt,
-- max_wait, of a calendar how many boundaries around now are told (as many as its own numbers can need), floor. Fields:
-- amount, burst, period, align, units, since.

-- Whether a boundary matters that was not told: then nothing is decided, and more of them are asked for.
local short = false

local function start_of(shape, at)
  if shape.align == 0 then return at end
  if shape.align == 1 then return at - fmod(at, shape.period) end
  local edges, start = shape.edges, nil
  for i = 1, #edges do
    if edges[i] <= at then start = edges[i] end
  end
  if not start or start == edges[#edges] then short = true end
  return start or 0
end

-- How many boundaries lie between, and whether it may be more.
local function steps_between(shape, align, period, since, at)
  if align ~= 2 then return quotient(max(at - since, 0), period), false end
  local edges, steps = shape.edges, 0
  for i = 1, #edges do
    if edges[i] > since and edges[i] <= at then steps = steps + 1 end
  end
  return steps, since < at and (since < edges[1] or at >= edges[#edges])
end

-- The boundary so many steps after `since`; one that lies beyond `enough` (nil: none does) need not be exact.
local function boundary(shape, since, steps, enough)
  if shape.align ~= 2 then return since + shape.period * steps end
  local edges = shape.edges
  for i = 1, #edges do
    if edges[i] > since then
      steps = steps - 1
      if steps == 0 and since >= edges[1] then return edges[i] end
    end
  end
  local last = max(edges[#edges], since)
  if since < edges[1] or not enough or last <= enough then short = true end
  return last + shape.period * max(steps, 1)
end

local function steps_now(shape, amount, burst, period, align, units, since)
  local passed, at_least = steps_between(shape, align, period, since, now)
  if units >= burst or passed >= quotient_up(burst - units, amount) then return burst, nil end
  if at_least then short = true end
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
      listed = s[7], edges = {}, floor = s[8],
    }
  end,
  -- The calendar of then is not kept; the present one stands in for it, if there is one.
  of = function(f, shape)
    return {
      amount = f[1], burst = f[2], period = f[3], align = f[4] == 2 and shape.align ~= 2 and 0 or f[4], debt = 0,
      max_wait = shape.max_wait or 0, edges = shape.edges or {}, floor = -f[2],
    }
  end,
  top = function(own) return own.burst end,
  left = function(bucket) return bucket.units end,
  last = function(f) return f[6] end,
  pull = function(shape, f)
    if f[6] - now <= ahead_max then return false end
    local align = f[4] == 2 and shape.align ~= 2 and 0 or f[4]
    f[6] = start_of({ align = align, period = f[3], edges = shape.edges }, now)
    return true
  end,
  load = function(bucket, shape, f)
    bucket.own, bucket.units, bucket.since, bucket.beyond = shape, shape.burst, nil, 0
    if f then
      local amount, burst, period, align, beyond = f[1], f[2], f[3], f[4], f[7] or 0
      if amount ~= shape.amount or burst ~= shape.burst or period ~= shape.period or align ~= shape.align then
        bucket.own = shape.kind.of(f, shape)
        align = bucket.own.align
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
    -- The units as they stand, clamped, never added to; the step goes on where it can. If a shorter period has passed, its
    -- end is the old one, or one new period away.
    local goes_on = (from.align == shape.align and from.period == shape.period)
      or (shape.align == 0 and steps_between(shape, 0, shape.period, since, now) == 0)
    bucket.units = min(units, shape.burst)
    if bucket.units >= shape.burst then
      bucket.since = start_of(shape, now)
    elseif not goes_on and shape.align == 0 then
      bucket.since = min(max(boundary(from, since, 1) - shape.period, 0), now)
    elseif not goes_on then
      bucket.since = start_of(shape, now)
    end
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
    -- (What lies before the boundaries told needs no start: some of them have passed since.)
    local early = shape.align == 2 and at < shape.edges[1]
    return { shape.amount, shape.burst, shape.period, shape.align, 0, early and at or start_of(shape, at) }
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
      local latest = now + shape.max_wait
      if boundary(shape, bucket.since, steps, latest) > latest then break end
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
  settle = function(bucket, what, units, window_end)
    local own = bucket.own
    local gives_back = what == 2 or (what == 6 and boundary(own, bucket.since, 1) == window_end)
    if what == 1 then
      bucket.units = min(max(bucket.units - units, own.floor), bucket.units)
    elseif gives_back and (bucket.units >= 0 or own.max_wait == 0) then
      bucket.units = min(bucket.units + units, own.burst)
      -- A full bucket has no step that runs: the next one starts when units are taken, or when the numbers change.
      if bucket.units >= own.burst then bucket.since = start_of(own, now) end
    end
  end,
  store = function(bucket)
    local own, gone, top = bucket.own, now, bucket.own.burst
    if bucket.units >= top and bucket.beyond == 0 then return nil end
    if bucket.kind == kinds[3] then gone = bucket.beyond else top = max(top, bucket.beyond) end
    if bucket.units < top then
      gone = max(gone, boundary(own, bucket.since, quotient_up(top - bucket.units, own.amount)))
    end
    return { own.amount, own.burst, own.period, own.align, bucket.units, bucket.since, bucket.beyond }, gone
  end,
}
kinds[2], kinds[3] = stepped, {}
for name, part in pairs(stepped) do kinds[3][name] = part end
