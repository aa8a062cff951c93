-- The two-window estimate. Shape: amount, period, most, ahead (windows that a settlement may fill beyond that of now; 0: it
-- stops at most). Fields: amount, period, start, previous, current, beyond, and when it was written, if it then began later.
local function pair_now(period, start, previous, current)
  local passed = quotient(max(now - start, 0), period)
  if passed == 0 then return start, previous, current end
  if passed == 1 then return start + period, current, 0 end
  return now - fmod(now, period), 0, 0
end

kinds[4] = {
  shape = function(s) return { amount = s[1], period = s[2], most = s[3], ahead = s[4] } end,
  of = function(f)
    return { amount = f[1], period = f[2], most = min(2 * f[1], quotient(exact - 1, f[2])), ahead = 0 }
  end,
  top = function(own) return own.amount end,
  left = function(bucket)
    local own, elapsed = bucket.own, max(now - bucket.start, 0)
    local ahead = quotient_up(max(bucket.start - now, 0), own.period)
    return own.amount - bucket.current - quotient_up(bucket.previous * (own.period - elapsed), own.period)
      - ahead * own.amount
  end,
  pull = function(_, f)
    local far = (f[7] or f[3]) - now
    if far <= ahead_max then return false end
    local amount, period = f[1], f[2]
    if f[7] then
      -- What lay ahead when it was written lies as far ahead now, and begins with a window.
      local start = f[3] - far
      f[3], f[7] = start + fmod(period - fmod(start, period), period), now
    else
      -- All of it counts, as it does while it stands still.
      local most = min(2 * amount, quotient(exact - 1, period))
      f[3], f[4], f[5] = now - fmod(now, period), 0, min(f[4] + f[5], max(most, f[5]))
    end
    return true
  end,
  load = function(bucket, shape, f)
    bucket.own, bucket.beyond = shape, 0
    local start, previous, current = now - fmod(now, shape.period), 0, 0
    if f then
      local amount, period = f[1], f[2]
      if amount ~= shape.amount or period ~= shape.period then
        bucket.own = kinds[4].of(f)
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
    -- The units left stay, clamped; what is used counts as of now, in one window, or of the one to come that is filled.
    local weighted = quotient_up(bucket.previous * (from.period - max(now - bucket.start, 0)), from.period)
    bucket.current = shape.amount - min(max(from.amount - bucket.current - weighted, 0), shape.amount)
    local at = bucket.current > 0 and max(now, bucket.start) or now
    bucket.start, bucket.previous = at - fmod(at, shape.period), 0
    bucket.absent = bucket.current == 0 and bucket.beyond == 0
  end,
  drained = function(bucket)
    bucket.current, bucket.absent = max(bucket.current, bucket.own.amount), false
  end,
  spent = function(shape, at) return { shape.amount, shape.period, at - fmod(at, shape.period), 0, shape.amount } end,
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
    local own, gone = bucket.own, bucket.beyond
    if bucket.current > 0 then
      gone = max(gone, bucket.start + 2 * own.period)
    elseif bucket.previous > 0 then
      gone = max(gone, bucket.start + own.period)
    end
    if gone == 0 then return nil end
    local stamp = bucket.start > now and now or nil
    return { own.amount, own.period, bucket.start, bucket.previous, bucket.current, bucket.beyond, stamp }, gone
  end,
}
