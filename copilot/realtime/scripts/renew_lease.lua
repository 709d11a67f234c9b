-- Renew a lease and its fence for the worker that runs the turn.
-- KEYS  1 lease  2 fence
-- ARGV  1 turn id  2 owner token  3 fence  4 lease lifetime in seconds  5 fence lifetime in seconds
--       6 "1" to create a missing lease (the caller has checked in Postgres that it still owns the turn)
-- Answer "renewed" | "guarded" (the fence was raised to this one) | "missing" (no lease)
--       | "lost" (another owner, or a higher fence)
local token = redis.call('HGET', KEYS[1], 'token')
if not token and ARGV[6] ~= '1' then
  return 'missing'
end
if token and token ~= ARGV[2] then
  return 'lost'
end
local fence = tonumber(string.match(redis.call('GET', KEYS[2]) or '0', '^%d+'))
if fence > tonumber(ARGV[3]) then
  return 'lost'
end
redis.call('HSET', KEYS[1], 'turn', ARGV[1], 'token', ARGV[2], 'fence', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
if fence == tonumber(ARGV[3]) then
  redis.call('EXPIRE', KEYS[2], ARGV[5]) -- not SET: the value also holds the number of the last batch
  return 'renewed'
end
redis.call('SET', KEYS[2], ARGV[3], 'EX', ARGV[5])
return 'guarded'
