-- Count one call in a fixed window.
-- KEYS  1 counter
-- ARGV  1 window in seconds
-- Answer {calls so far, seconds left}
local count = redis.call('INCR', KEYS[1])
if count == 1 then
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return {count, redis.call('TTL', KEYS[1])}
