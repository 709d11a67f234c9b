-- The owner says it still runs: the lease lives on, and its fence guards the log (T4.1, T4.2).
-- KEYS  1 lease  2 fence
-- ARGV  1 turn id  2 owner token  3 fence  4 lease seconds  5 fence seconds
--       6 "1" to make a missing lease anew (the caller has read in Postgres that the turn is still its own)
-- Answer "renewed" | "guarded" (from now on: the log did not know this fence) | "missing" | "lost"
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
  redis.call('EXPIRE', KEYS[2], ARGV[5]) -- the number of its last batch stands beside it
  return 'renewed'
end
redis.call('SET', KEYS[2], ARGV[3], 'EX', ARGV[5])
return 'guarded'
