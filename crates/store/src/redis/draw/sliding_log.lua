-- The sliding log. Shape: amount, period, max_wait, reach (how far after now a settlement may make units count; 0: it stops
-- at what a log may have). Fields: moment and units of each grant; first of them one of no units, of when it was written, if
-- the last was later.
-- The most units of a log that a charge leads to: twice the largest amount.
local log_units_most = 2048

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

-- A full log with so many units more, each when as many before it have left as the quota has.
local function line_up(log, own, rest, from)
  local period, kept = own.period, {}
  local whole, part = quotient(rest, own.amount), fmod(rest, own.amount)
  local room = quotient(max(now + own.reach - from, 0), period)
  if whole >= room then whole, part = room, 0 end
  local moved = {}
  for i = 1, #log, 2 do
    if from - log[i] < period then
      local at, units = log[i] + whole * period, log[i + 1]
      local late = min(units, part)
      part = part - late
      if units > late then
        kept[#kept + 1] = at
        kept[#kept + 1] = units - late
      end
      if late > 0 then
        moved[#moved + 1] = at + period
        moved[#moved + 1] = late
      end
    end
  end
  for i = 1, #moved do kept[#kept + 1] = moved[i] end
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
  if due == from and shape.max_wait == 0 and shape.reach == 0 then return due end
  if due - now > shape.max_wait then return nil end
  return due
end

kinds[5] = {
  shape = function(s) return { amount = s[1], period = s[2], max_wait = s[3], reach = s[4] } end,
  pull = function(_, f)
    local last = #f - 1
    if last < 1 then return false end
    local far = (f[2] == 0 and f[1] or f[last]) - now
    if far <= ahead_max then return false end
    for i = 1, last, 2 do f[i] = max(f[i] - far, 0) end
    return true
  end,
  load = function(bucket, shape, f)
    local log = {}
    bucket.own = shape
    for i = 1, f and #f or 0, 2 do
      if f[i + 1] > 0 then log[#log + 1], log[#log + 2] = f[i], f[i + 1] end
    end
    if #log == 0 or now - log[#log - 1] >= shape.period then log, bucket.absent = {}, true end
    bucket.log = log
  end,
  drained = function(bucket)
    local own, from = bucket.own, from_of(bucket.log)
    local room = max(own.amount - counted(bucket.log, own.period, from), 0)
    bucket.log, bucket.absent = remember(bucket.log, own.period, from, room), false
  end,
  spent = function(shape, at) return { at, shape.amount } end,
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
  settle = function(bucket, what, units, window_end)
    local log, own = bucket.log, bucket.own
    local from = from_of(log)
    if what == 1 and own.reach > 0 then
      local at_once = min(units, max(own.amount - counted(log, own.period, from), 0))
      bucket.log = line_up(remember(log, own.period, from, at_once), own, units - at_once, from)
    elseif what == 1 then
      local room = max(log_units_most - counted(log, own.period, from), 0)
      bucket.log = remember(log, own.period, from, min(units, room))
    elseif (what == 2 or what == 6 and now < window_end) and (from <= now or own.max_wait == 0) then
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
    local log, fields = bucket.log, {}
    if #log == 0 then return nil end
    local last = log[#log - 1]
    if last > now then fields = { now, 0 } end
    for i = 1, #log do fields[#fields + 1] = log[i] end
    local gone = last + bucket.own.period
    return fields, gone
  end,
}
