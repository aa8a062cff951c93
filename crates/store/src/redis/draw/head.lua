-- Decides a whole batch of requests at one moment of the server's clock: for each request all its claims are charged,
-- or none. A translation of src/limit (token_bucket, lease, interval, fixed_window, sliding_window, sliding_log,
-- in_flight, and kept for buckets of several numbers); tests/conformance and tests/stores hold it to them.
--
-- KEYS      the distinct buckets of the batch; last, where the fifth number says so, the mark of this server's data
-- ARGV[1]   one msgpack array of integers:
--           version, pinned clock (0: TIME), gateway id, fingerprint, whether the mark is the last key,
--           count of shapes, then 12 numbers for each: kind, drain and ten of the kind's own,
--           for each shape with a calendar its boundaries around now (how many is the seventh of its own numbers),
--           for each bucket the place of its shape,
--           count of leases given back, then for each: bucket, id, units left,
--           count of corrections, then for each: bucket, what, units,
--           count of groups, then for each: how many equal requests, count of claims, then bucket, cost, enforced,
--           count of wishes for a lease, then for each: bucket, id, units wished for, units that requests wait for
-- answer    one msgpack array: now, for each bucket a count and so many integers (its state before the requests and
--           after the corrections, in the numbers of its present shape; count 0: none, or full), for each group how many
--           were granted, for each wish how many units; or -1 and now, where a calendar's boundaries did not suffice:
--           then nothing was done
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
-- The mark is kept so many seconds after the last gateway was heard of: 30 days.
local mark_seconds = 2592000
-- 2^53, below which doubles hold every integer, and 2^52.
local exact, scaled_max = 9007199254740992, 4503599627370496

local input = unpack_value(ARGV[1])
if input[1] ~= 3 then
  return redis.error_reply('TOLLGATE this script speaks version 3 of its arguments')
end
local now, me, fingerprint, marked = input[2], input[3], input[4], input[5]
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

-- A bucket whose moment lies further ahead than this was written before the clock was put back: it is pulled to now, with the
-- units it has, instead of standing still until the clock has caught up. See crates/limit/src/kept/ahead.rs.
local ahead_max = 1000000

-- Each kind: pull(shape, fields) does that to what was stored, and says whether; load(bucket, shape, fields) makes the state from what was stored (nil: afresh), in the numbers it was
-- stored under (bucket.own; the shape itself, where they are the same or the bucket is full), spent(shape, at) is what a
-- bucket used up at that moment would have stored, drained(bucket) empties it, settle(bucket, what, units) corrects,
-- turn(bucket, shape) makes the shape's numbers its own: units as they stand, clamped, never added to; what a larger
-- burst would still miss it remembers (bucket.beyond, see src/limit/kept.rs). seen(bucket) lists it, afford(bucket,
-- shape, cost, n) says how many of n equal requests can pay one after the other, take(bucket, shape, cost, n) charges
-- them, store(bucket) returns the fields to keep and when they may go (nil: now).
local kinds = {}
