-- The document that all gateways share: writes a new one if the present one has the expected epoch, and returns the text
-- unless the caller knows its epoch. Numbers are texts: they may have more digits than Lua counts exactly.
-- It is published under the key's name.
-- ARGV: a test's clock or 0; the known epoch; to write: the expected epoch, the new one, the text, seconds to keep it.
local time = redis.call('TIME')
local now = ARGV[1] ~= '0' and ARGV[1] or string.format('%.0f', time[1] * 1000000 + time[2])
local epoch = redis.call('HGET', KEYS[1], 'epoch') or '0'
local written = 0
if ARGV[3] and ARGV[3] == epoch then
    redis.call('HSET', KEYS[1], 'epoch', ARGV[4], 'text', ARGV[5])
    redis.call('EXPIRE', KEYS[1], ARGV[6])
    epoch, written = ARGV[4], 1
    -- A user without the right to publish can still write: the other gateways find the epoch with their heartbeats.
    redis.pcall('PUBLISH', KEYS[1], epoch)
end
local text = false
if epoch ~= ARGV[2] then
    text = redis.call('HGET', KEYS[1], 'text') or ''
end
return { epoch, now, written, text }
