-- Admit a message: claim the free session for a turn, queue behind the turn that holds it, or refuse at a full queue.
-- A retry with the same arguments changes nothing, so it is safe after a lost answer.
-- KEYS  1 lease  2 queue
-- ARGV  1 turn id  2 owner token  3 queue member ("" = claim or fail)  4 queue order  5 capacity
-- Answer {"claimed", 0, turn} | {"queued", position, turn that holds the lease} | {"full", length, turn that holds it}
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
