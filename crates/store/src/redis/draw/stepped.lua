-- Interval buckets and fixed windows. Shape: amount, burst, period, align (0 first hit, 1 clock, 2 calendar), debt,
-- max_wait, of a calendar how many boundaries around now are told (as many as its own numbers can need), floor. Fields: the
-- largest amount it was drawn under, used, since.

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
local function steps_between(shape, since, at)
  if shape.align ~= 2 then return quotient(max(at - since, 0), shape.period), false end
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

-- What is used now, and since when; nothing: nil.
local function steps_now(shape, amount, used, since)
  local passed, at_least = steps_between(shape, since, now)
  if passed >= quotient_up(used, amount) then return 0, nil end
  if at_least then short = true end
  local start = since
  if passed > 0 then
    start = since + shape.period * passed
    if shape.align == 2 then start = start_of(shape, now) end
  end
  return used - passed * amount, start
end

local stepped = {
  shape = function(s)
    return {
      amount = s[1], burst = s[2], period = s[3], align = s[4], debt = s[5], max_wait = s[6],
      listed = s[7], edges = {}, floor = s[8],
    }
  end,
  pull = function(shape, f)
    if f[3] - now <= ahead_max then return false end
    f[3] = start_of(shape, now)
    return true
  end,
  load = function(bucket, shape, f)
    bucket.own, bucket.amount, bucket.used, bucket.since = shape, shape.amount, 0, nil
    if f then
      bucket.amount = max(f[1], shape.amount)
      bucket.used, bucket.since = steps_now(shape, bucket.amount, f[2], f[3])
    end
    if bucket.used == 0 then bucket.amount, bucket.absent = shape.amount, true end
    bucket.since = bucket.since or start_of(shape, now)
  end,
  drained = function(bucket)
    bucket.used, bucket.absent = max(bucket.used, bucket.own.burst), false
  end,
  spent = function(shape, at)
    -- (What lies before the boundaries told needs no start: some of them have passed since.)
    local early = shape.align == 2 and at < shape.edges[1]
    return { shape.amount, shape.burst, early and at or start_of(shape, at) }
  end,
  seen = function(bucket) return { bucket.amount, bucket.used, bucket.since } end,
  afford = function(bucket, shape, cost, count)
    if cost > shape.burst + shape.debt then return 0 end
    local need = max(cost - shape.debt, 0)
    local units, able = shape.burst - bucket.used, 0
    if units >= need then
      if cost == 0 then return count end
      able = min(count, quotient(units - need, cost) + 1)
    end
    if able == count or shape.max_wait == 0 then return able end
    local used = bucket.used + able * cost
    while able < count do
      local steps = quotient_up(need - shape.burst + used, bucket.amount)
      local latest = now + shape.max_wait
      if boundary(shape, bucket.since, steps, latest) > latest then break end
      if cost == 0 then return count end
      used = max(used, steps * bucket.amount) + cost
      able = able + 1
    end
    return able
  end,
  take = function(bucket, shape, cost, count)
    local need = max(cost - shape.debt, 0)
    for _ = 1, count do
      local short_of = max(need - shape.burst + bucket.used, 0)
      bucket.used = max(bucket.used, quotient_up(short_of, bucket.amount) * bucket.amount) + cost
    end
  end,
  settle = function(bucket, what, units, window_end)
    local own = bucket.own
    local gives_back = what == 2 or (what == 6 and boundary(own, bucket.since, 1) == window_end)
    if what == 1 then
      -- The lower floor of bucket and shape.
      local most = own.burst - own.floor + bucket.amount - own.amount
      bucket.used = max(min(bucket.used + units, most), bucket.used)
    elseif gives_back and (bucket.used <= own.burst or own.max_wait == 0) then
      bucket.used = max(bucket.used - units, 0)
      -- An unused bucket has no step that runs: the next one starts when units are taken.
      if bucket.used == 0 then bucket.since, bucket.amount = start_of(own, now), own.amount end
    end
  end,
  store = function(bucket)
    if bucket.used == 0 then return nil end
    local gone = boundary(bucket.own, bucket.since, quotient_up(bucket.used, bucket.amount))
    return { bucket.amount, bucket.used, bucket.since }, gone
  end,
}
kinds[2], kinds[3] = stepped, {}
for name, part in pairs(stepped) do kinds[3][name] = part end
