-- A message waits although nobody holds the session: its turn waits for a person (A11.8).
-- KEYS  1 queue
-- ARGV  1 queue member  2 queue order  3 capacity
-- Answer its position, or 0 when the queue is full; repeating it changes nothing.
if not redis.call('ZRANK', KEYS[1], ARGV[1]) then
  if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
    return 0
  end
  redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
  redis.call('EXPIRE', KEYS[1], 2592000)
end
return redis.call('ZRANK', KEYS[1], ARGV[1]) + 1
