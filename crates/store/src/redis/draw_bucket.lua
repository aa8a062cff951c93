-- The common case of draw/*.lua, at less than half of its time: token buckets in which no request waits and no fail-over
-- drains, and requests whose claims are all enforced. The same arithmetic and rows (draw/level.lua), the same results as the
-- general script.
--
-- KEYS      the distinct buckets of the batch
-- ARGV[1]   little-endian: pinned clock (0: TIME) and fingerprint as doubles, a byte, the count of terms, then for each
--           five doubles: n, p, full, price, need; for each bucket the place of a term of its own numbers in a byte; for each
--           group how many equal requests in two bytes and the count of claims in one, then for each claim the place of its
--           term in a byte and its bucket in two
-- answer    empty, where a bucket holds another algorithm's row: then nothing was done, and the general script decides.
--           Else little-endian: now as a double, for each bucket its level and moment before, as doubles, and for each group
--           how many were granted, in two bytes
--
local call, unpack_numbers, pack_numbers = redis.call, struct.unpack, struct.pack
local keys, input = KEYS, ARGV[1]
local total = #keys
-- Level and moment, which alone change in most writes, and where they are.
local row_tail, row_head_len = '<i7I7', 36
-- Written to stand so much longer than it must, so that most writes leave its expiry alone.
local margin = 2000000

local now, fingerprint, terms = unpack_numbers('<ddB', input)
local pinned = now ~= 0
if not pinned then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local stored
if total == 1 then
  stored = { call('GET', keys[1]) }
else
  stored = call('MGET', unpack(keys))
end
for i = 1, total do
  local value = stored[i]
  if value and string.byte(value) ~= row_mark then return '' end
end

-- Bucket `i` in these numbers: level and its moment, until when it stands as it is written, its ledger, the level of a bucket
-- that is full under the largest burst, and whether it was pulled to now, which is written down whatever is decided.
local function load(i, n, p, full)
  local value = stored[i]
  if not value or #value < row_len then return full, now, 0, nil, full, false end
  local _, print_before, n_before, p_before, full_before, till, level_before, at_before = unpack_numbers(row, value)
  local pulled = at_before - now > ahead_max
  if pulled then at_before = now end
  local level, at, out, ledger
  if #value > row_len then
    level, at, out = brought_to(now, level_before, at_before, n_before, p_before, full_before, ledger_in(value))
    ledger = string.sub(value, row_len + 1)
  else
    level, at, out = refilled(level_before, at_before, now, n_before, full_before), max(at_before, now), 0
  end
  -- One that is full equals none.
  if level >= full_before then return full, at, 0, nil, full, pulled end
  local wide, stands = widest(p_before, full_before, p, full), 0
  if n_before == n and p_before == p then
    -- A pinned clock says nothing of how long the server keeps it.
    if full_before == wide and print_before == fingerprint and not pinned and not pulled then stands = till end
  elseif ledger then
    level = converted(level, p_before, p, wide)
  else
    level = under(level, level_before, at_before, now, p_before, n, p, wide)
  end
  return min(level, max(full - out * p, 0)), at, stands, ledger, wide, pulled
end

local function write(key, n, p, level, at, stands, ledger, wide)
  -- It goes a second after it is full again, so that its going grants nothing.
  local till = math.ceil((wide - level) / n) + at + 1000000
  if till <= stands then
    call('SETRANGE', key, row_head_len, pack_numbers(row_tail, level, at))
  else
    till = till + margin
    local kept = pack_numbers(row, row_mark, fingerprint, n, p, wide, till, level, at)
    if ledger then kept = kept .. ledger end
    call('SET', key, kept, 'PX', math.ceil((till - now) / 1000))
  end
end

local from = 18 + 40 * terms
local term_of = { string.byte(input, from, from + total - 1) }
local groups = { string.byte(input, from + total, -1) }
local numbers, answer = {}, {}
for term = 0, terms - 1 do
  numbers[term] = { unpack_numbers('<ddddd', input, 18 + 40 * term) }
end
local levels, ats, all_stands, all_ledgers, all_wide, written = {}, {}, {}, {}, {}, {}
for i = 1, total do
  local its = numbers[term_of[i]]
  levels[i], ats[i], all_stands[i], all_ledgers[i], all_wide[i], written[i] = load(i, its[1], its[2], its[3])
  answer[2 * i - 1], answer[2 * i] = levels[i], ats[i]
end

local place, last, bytes = 1, 2 * total, #groups
while place <= bytes do
  local granted, first = groups[place] + 256 * groups[place + 1], place + 3
  place = first + 3 * groups[place + 2]
  for at = first, place - 3, 3 do
    local its = numbers[groups[at]]
    granted = affordable(levels[groups[at + 1] + 256 * groups[at + 2] + 1], its[4], its[5], granted)
    if granted == 0 then break end
  end
  if granted > 0 then
    for at = first, place - 3, 3 do
      local bucket = groups[at + 1] + 256 * groups[at + 2] + 1
      levels[bucket], written[bucket] = levels[bucket] - numbers[groups[at]][4] * granted, true
    end
  end
  last = last + 1
  answer[last] = granted
end

for i = 1, total do
  if written[i] then
    local its = numbers[term_of[i]]
    write(keys[i], its[1], its[2], levels[i], ats[i], all_stands[i], all_ledgers[i], all_wide[i])
  end
end
local format = '<d' .. string.rep('d', 2 * total) .. string.rep('H', last - 2 * total)
return pack_numbers(format, now, unpack(answer))
