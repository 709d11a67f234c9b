-- Extend a running turn's hold, restoring it if it was lost.
-- KEYS  1 holds   ARGV  1 hold id  2 amount  3 lifetime in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now + ARGV[3]))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
