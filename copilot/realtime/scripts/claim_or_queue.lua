-- A message arrives: take the free session for a turn, wait behind the one that has it, or be told it is full (T3.4).
-- KEYS  1 lease  2 queue
-- ARGV  1 turn id  2 owner token  3 queue member  4 queue order  5 capacity
-- Answer {"claimed", 0, turn} | {"queued", position, turn of the holder} | {"full", capacity, turn of the holder}
-- Repeating it with the same arguments changes nothing, so a retry after a lost answer is safe.
local holder = redis.call('HMGET', KEYS[1], 'token', 'turn')
if not holder[1] or holder[1] == ARGV[2] then
  local now = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'turn', ARGV[1], 'token', ARGV[2], 'claimed_at', now[1])
  return {'claimed', 0, ARGV[1]}
end
if ARGV[3] == '' then
  return {'full', 0, holder[2]}
end
local rank = redis.call('ZRANK', KEYS[2], ARGV[3])
if rank then
  return {'queued', rank + 1, holder[2]}
end
local length = redis.call('ZCARD', KEYS[2])
if length >= tonumber(ARGV[5]) then
  return {'full', length, holder[2]}
end
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[3])
redis.call('EXPIRE', KEYS[2], 2592000)
return {'queued', redis.call('ZRANK', KEYS[2], ARGV[3]) + 1, holder[2]}
