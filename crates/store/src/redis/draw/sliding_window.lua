-- The two-window estimate. Shape: amount, period, most, ahead (windows that a settlement may fill beyond that of now; 0: it
-- stops at most). Fields: start, previous, current, and when it was written, if it then began later.
local function pair_now(period, start, previous, current)
  local passed = quotient(max(now - start, 0), period)
  if passed == 0 then return start, previous, current end
  if passed == 1 then return start + period, current, 0 end
  return now - fmod(now, period), 0, 0
end

kinds[4] = {
  shape = function(s) return { amount = s[1], period = s[2], most = s[3], ahead = s[4] } end,
  pull = function(shape, f)
    local far = (f[4] or f[1]) - now
    if far <= ahead_max then return false end
    local period = shape.period
    if f[4] then
      -- What lay ahead when it was written lies as far ahead now, and begins with a window.
      local start = f[1] - far
      f[1], f[4] = start + fmod(period - fmod(start, period), period), now
    else
      -- All of it counts, as it does while it stands still.
      f[1], f[2], f[3] = now - fmod(now, period), 0, min(f[2] + f[3], shape.most)
    end
    return true
  end,
  load = function(bucket, shape, f)
    bucket.own = shape
    local start, previous, current = now - fmod(now, shape.period), 0, 0
    if f then start, previous, current = pair_now(shape.period, f[1], f[2], f[3]) end
    if previous == 0 and current == 0 then
      bucket.absent = true
      start = now - fmod(now, shape.period)
    end
    bucket.start, bucket.previous, bucket.current = start, previous, current
  end,
  drained = function(bucket)
    bucket.current, bucket.absent = max(bucket.current, bucket.own.amount), false
  end,
  spent = function(shape, at) return { at - fmod(at, shape.period), 0, shape.amount } end,
  seen = function(bucket) return { bucket.start, bucket.previous, bucket.current } end,
  afford = function(bucket, shape, cost, count)
    if cost > shape.amount then return 0 end
    -- Debts are still to be counted.
    if shape.ahead > 0 and bucket.start > now then return 0 end
    -- previous x left <= room x period, so the room must be this at least.
    local left = shape.period - max(now - bucket.start, 0)
    local room = shape.amount - bucket.current - quotient_up(bucket.previous * left, shape.period)
    if room < cost then return 0 end
    if cost == 0 then return count end
    return min(count, quotient(room, cost))
  end,
  take = function(bucket, _, cost, count) bucket.current = bucket.current + cost * count end,
  settle = function(bucket, what, units, window_end)
    local own = bucket.own
    if what == 1 and own.ahead > 0 and bucket.current + units > own.amount then
      local total = bucket.current + units
      local whole = quotient(total - 1, own.amount)
      local windows = min(whole, max(own.ahead - quotient_up(max(bucket.start - now, 0), own.period), 0))
      if windows == 0 then
        bucket.current = max(bucket.current, own.amount)
      else
        bucket.start, bucket.previous = bucket.start + windows * own.period, own.amount
        bucket.current = windows < whole and own.amount or total - whole * own.amount
      end
    elseif what == 1 then
      bucket.current = min(bucket.current + units, max(own.most, bucket.current))
    elseif what == 2 then
      local rest = max(units - bucket.current, 0)
      bucket.current = max(bucket.current - units, 0)
      bucket.previous = max(bucket.previous - rest, 0)
    elseif what == 6 and bucket.start + own.period == window_end then
      bucket.current = max(bucket.current - units, 0)
    elseif what == 6 and bucket.start == window_end then
      bucket.previous = max(bucket.previous - units, 0)
    end
    -- Nothing is left to be counted, in whichever window it would have been.
    if bucket.current == 0 and bucket.previous == 0 then bucket.start = now - fmod(now, own.period) end
  end,
  store = function(bucket)
    if bucket.current == 0 and bucket.previous == 0 then return nil end
    local gone = bucket.start + (bucket.current > 0 and 2 or 1) * bucket.own.period
    local stamp = bucket.start > now and now or nil
    return { bucket.start, bucket.previous, bucket.current, stamp }, gone
  end,
}
