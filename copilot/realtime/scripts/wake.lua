-- Add a turn to those that want a worker.
-- KEYS  1 wake-ups
-- ARGV  1 turn id  2 lifetime in seconds
local length = redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return length
