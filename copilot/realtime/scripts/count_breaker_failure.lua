-- Count a failure of a model, and open its circuit breaker when there are too many within the window.
-- KEYS  1 failures of the model (sorted by time)  2 open breakers (model -> until when and why)
-- ARGV  1 id of this failure  2 model  3 reason  4 failures that open the breaker  5 window in seconds
--       6 seconds it stays open
-- Answer 1 if this failure opened the breaker, else 0
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[5]))
redis.call('EXPIRE', KEYS[1], ARGV[5])
if redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[4]) then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[2], ARGV[2], string.format('%.3f %s', now + tonumber(ARGV[6]), ARGV[3]))
redis.call('EXPIRE', KEYS[2], ARGV[6])
return 1
