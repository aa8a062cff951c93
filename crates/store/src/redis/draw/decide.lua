for number, kind in pairs(kinds) do kind.number = number end

local place = 8
local shapes = {}
for i = 1, input[7] do
  local kind = kinds[input[place]]
  local numbers = {}
  for j = 1, 10 do numbers[j] = input[place + 1 + j] end
  local shape = kind.shape(numbers)
  shape.kind, shape.number, shape.drain = kind, input[place], input[place + 1]
  shapes[i] = shape
  place = place + 12
end
for i = 1, #shapes do
  local shape = shapes[i]
  for j = 1, shape.listed or 0 do
    shape.edges[j] = input[place]
    place = place + 1
  end
end

local total, stored = (#KEYS - marked) / (1 + resets), nil
if #KEYS == 1 then
  stored = { redis.call('GET', KEYS[1]) }
else
  stored = redis.call('MGET', unpack(KEYS))
end

-- Since when this data is all there is: what was granted before may be lost with it. The mark lies beside the buckets, so
-- that whatever takes them away takes it too, and it is read in the call that finds a bucket missing.
local epoch = 0
if marked == 1 then
  local since = tonumber(stored[#KEYS] or nil)
  epoch = min(since or now, now)
  if since ~= epoch then redis.call('SET', KEYS[#KEYS], string.format('%.0f', epoch), 'EX', mark_seconds) end
end

-- A bucket that was empty at the epoch and has refilled since, whatever it was before. Returns its fields of that moment.
local function drained(bucket, shape, fields)
  local real = now
  now, bucket.mine = min(epoch, now), nil
  if fields then
    bucket.kind.load(bucket, shape, fields)
    bucket.kind.drained(bucket)
    fields = bucket.kind.store(bucket)
  else
    fields = bucket.kind.spent(shape, now)
  end
  now, bucket.mine, bucket.absent = real, nil, nil
  bucket.kind.load(bucket, shape, fields)
  return fields
end

local answer = { now }
local last = 1
local buckets = {}
for i = 1, total do
  local shape = shapes[input[place] + 1]
  place = place + 1
  local bucket = { shape = shape, kind = shape.kind }
  local fields, print_of, number
  if stored[i] and #stored[i] >= row_len and string.byte(stored[i]) == row_mark then
    local _, print, n, p, full, _, level, at = struct.unpack(row, stored[i])
    number, print_of, fields = 1, print, { n, p, full, level, at }
    fields.ledger = ledger_in(stored[i])
  elseif stored[i] then
    -- Stored: version, kind, fingerprint, fields.
    local fine, value = pcall(unpack_value, stored[i])
    if fine and type(value) == 'table' and value[1] == 1 and kinds[value[2]] then
      number, print_of, fields = value[2], value[3], {}
      for j = 4, #value do fields[j - 3] = value[j] end
    end
  end
  if number ~= shape.number then fields = nil end
  -- No correction is about a row that is not of this kind.
  bucket.foreign = stored[i] and not fields
  -- Kept whatever is decided: it would be pulled to a later moment each time.
  bucket.corrected = fields and bucket.kind.pull(shape, fields)
  if shape.drain == 1 and print_of ~= fingerprint then
    fields = drained(bucket, shape, fields)
  else
    bucket.kind.load(bucket, shape, fields)
  end
  buckets[i] = bucket
end

-- What a bucket's row is to be.
local function value_of(bucket)
  local fields, gone = bucket.kind.store(bucket)
  if not fields then return nil end
  if bucket.kind ~= kinds[1] then
    local value = { 1, bucket.kind.number, fingerprint }
    for j = 1, #fields do value[3 + j] = fields[j] end
    return pack(value), gone
  end
  local n, p, full, level, at = unpack(fields)
  local parts = { struct.pack(row, row_mark, fingerprint, n, p, full, gone + 1000000, level, at) }
  for _, slot in ipairs(fields.ledger) do parts[#parts + 1] = struct.pack(row_slot, slot[1], slot[2]) end
  return table.concat(parts), gone
end

-- Corrections are about grants of the past, made under whichever numbers: the bucket keeps its own. A reset begins a generation
-- of the bucket: what was drawn before returns nothing to it.
local generations = {}
for i = 1, total * resets do generations[i] = tonumber(stored[total + i] or nil) end
place = place + 1
for _ = 1, input[place - 1] do
  local bucket = buckets[input[place] + 1]
  if bucket.kind.give_back and bucket.kind.give_back(bucket, input[place + 1], input[place + 2], input[place + 3]) then
    bucket.corrected = true
  end
  place = place + 4
end
place = place + 1
for _ = 1, input[place - 1] do
  local i, what, drawn = input[place] + 1, input[place + 1], input[place + 4]
  local bucket = buckets[i]
  if drawn < 0 then generations[i], bucket.reset = now, true end
  local returns_nothing = (what == 2 or what == 6) and drawn > 0 and drawn <= (generations[i] or 0)
  if not bucket.foreign and not returns_nothing then
    bucket.kind.settle(bucket, what, input[place + 2], input[place + 3])
    bucket.corrected = true
  end
  place = place + 5
end

-- Requests are decided in their own, which the bucket takes on when something is drawn.
for i = 1, total do
  local bucket = buckets[i]
  if bucket.corrected then
    bucket.value, bucket.gone = value_of(bucket)
    bucket.absent = not bucket.value
  end
  if bucket.absent then
    bucket.kind.load(bucket, bucket.shape, nil)
  elseif bucket.kind.turn then
    bucket.kind.turn(bucket, bucket.shape)
  end
  if bucket.absent then
    last = last + 1
    answer[last] = 0
  else
    local seen = bucket.kind.seen(bucket)
    last = last + 1
    answer[last] = #seen
    for j = 1, #seen do answer[last + j] = seen[j] end
    last = last + #seen
  end
end

place = place + 1
for _ = 1, input[place - 1] do
  local granted, claims = input[place], input[place + 1]
  local first = place + 2
  place = first + 3 * claims
  for at = first, place - 3, 3 do
    if input[at + 2] == 1 and granted > 0 then
      local bucket = buckets[input[at] + 1]
      granted = min(granted, bucket.kind.afford(bucket, bucket.shape, input[at + 1], granted))
    end
  end
  if granted > 0 then
    for at = first, place - 3, 3 do
      local bucket, cost, taken = buckets[input[at] + 1], input[at + 1], granted
      -- Shadows are judged and charged in the same pass and never refuse.
      if input[at + 2] ~= 1 then taken = bucket.kind.afford(bucket, bucket.shape, cost, granted) end
      if taken > 0 and cost > 0 then
        bucket.kind.take(bucket, bucket.shape, cost, taken)
        bucket.drawn = true
      end
    end
  end
  last = last + 1
  answer[last] = granted
end

place = place + 1
for _ = 1, input[place - 1] do
  local bucket = buckets[input[place] + 1]
  local units = 0
  if bucket.kind.lease then
    units = bucket.kind.lease(bucket, bucket.shape, input[place + 1], input[place + 2])
  end
  bucket.drawn = bucket.drawn or units > 0
  last = last + 1
  answer[last] = units
  place = place + 3
end

if short then return pack({ -1, now }) end

for i = 1, total do
  local bucket = buckets[i]
  if bucket.drawn then bucket.value, bucket.gone = value_of(bucket) end
  if bucket.value then
    -- It goes a second after it is full again, so that its going grants nothing.
    local life = quotient_up(max(bucket.gone - now, 1), 1000) + 1000
    redis.call('SET', KEYS[i], bucket.value, 'PX', string.format('%.0f', life))
  elseif stored[i] and (bucket.drawn or bucket.corrected) then
    redis.call('DEL', KEYS[i])
  end
  if bucket.reset then redis.call('SET', KEYS[total + i], string.format('%.0f', now), 'EX', reset_seconds) end
end
return pack(answer)
