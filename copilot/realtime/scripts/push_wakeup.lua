-- Add a turn to the list of turns that need a worker.
-- KEYS  1 wake-ups
-- ARGV  1 turn id  2 lifetime in seconds
-- Answer the length of the list
local length = redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return length
