-- Concurrency. Shape: most, ttl. Fields: holder, units, expiry, and so on; a holder that stops renewing is forgotten.
kinds[8] = {
  shape = function(s) return { most = s[1], ttl = s[2] } end,
  pull = function(shape, f)
    local far = false
    for i = 3, #f, 3 do
      if f[i] - now > shape.ttl + ahead_max then f[i], far = now + shape.ttl, true end
    end
    return far
  end,
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
