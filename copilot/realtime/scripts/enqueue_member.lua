-- Queue a message behind a paused turn, which holds no lease. A retry changes nothing.
-- KEYS  1 queue
-- ARGV  1 queue member  2 queue order  3 capacity
-- Answer the position, or 0 when the queue is full
if not redis.call('ZRANK', KEYS[1], ARGV[1]) then
  if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
    return 0
  end
  redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
  redis.call('EXPIRE', KEYS[1], 2592000)
end
return redis.call('ZRANK', KEYS[1], ARGV[1]) + 1
