-- Decides a whole batch of requests at one moment of the server's clock: for each request all its claims are charged,
-- or none. A translation of crates/limit/src (token_bucket, lease, interval, fixed_window, sliding_window, sliding_log,
-- in_flight, and kept for buckets of several numbers); tests/conformance and tests/stores hold it to them.
--
-- KEYS      the distinct buckets of the batch; where the sixth number says so, for each the moment of its last reset; last,
--           where the fifth number says so, the mark of this server's data
-- ARGV[1]   one msgpack array of integers:
--           version, pinned clock (0: TIME), gateway id, fingerprint, whether the mark is the last key, whether resets are keys,
--           count of shapes, then 12 numbers for each: kind, drain and ten of the kind's own,
--           for each shape with a calendar its boundaries around now (how many is the seventh of its own numbers),
--           for each bucket the place of its shape,
--           count of leases given back, then for each: bucket, until when its slot counts, its units, units left,
--           count of corrections, then for each: bucket, what, units, the end of the window they are of (or 0), the moment of
--           the draw that they were charged by (0: not known, -1: none, the bucket is reset),
--           count of groups, then for each: how many equal requests, count of claims, then bucket, cost, enforced,
--           count of leases asked for, then for each: bucket, units asked for, units that requests wait for
-- answer    one msgpack array: now, for each bucket a count and so many integers (its state before the requests and
--           after the corrections, in the numbers of its present shape; count 0: none, or full), for each group how many
--           were granted, for each lease how many units; or -1 and now, where a calendar's boundaries did not suffice:
--           then nothing was done
--
-- level.lua says how numbers stay exact. '..' and tostring would keep 14 digits of a timestamp, so numbers reach redis.call
-- through '%.0f' only.

local pack, unpack_value = cmsgpack.pack, cmsgpack.unpack
-- A token bucket's row is level.lua's. The other kinds' rows are msgpack, which does not begin with a one.
-- The most slots of a ledger, their width, the longest that a lease counts but for its slot, and the part of the level that one
-- takes at most: crates/limit/src/lease.rs.
local slots_max, slot_width, counted_max, lease_parts = 16, 100000, 1200000, 10
-- The mark is kept so many seconds after the last gateway was heard of: 30 days. The moment of a reset is kept for a day.
local mark_seconds, reset_seconds = 2592000, 86400

local input = unpack_value(ARGV[1])
if input[1] ~= 7 then
  return redis.error_reply('TOLLGATE this script speaks version 7 of its arguments')
end
local now, me, fingerprint, marked, resets = input[2], input[3], input[4], input[5], input[6]
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Each kind: pull(shape, fields) moves what was stored too far ahead back to now, and says whether; load(bucket, shape, fields)
-- makes the state from what was stored (nil: afresh); spent(shape, at) is what a bucket used up at that moment would have
-- stored, drained(bucket) empties it, settle(bucket, what, units) corrects; turn(bucket, shape), where a state has a scale,
-- converts it for draws under these numbers. seen(bucket) lists it, afford(bucket, shape, cost, n) says how many of n equal
-- requests can pay one after the other, take(bucket, shape, cost, n) charges them, store(bucket) returns the fields to keep
-- and when they may go (nil: now).
local kinds = {}
