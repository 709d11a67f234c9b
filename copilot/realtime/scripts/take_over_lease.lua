-- Take over a turn whose worker was lost: raise the fence, and renew the lease without a lifetime for the next worker.
-- KEYS  1 lease  2 fence
-- ARGV  1 turn id  2 owner token  3 new fence  4 fence lifetime in seconds
-- Answer 1, or 0 when the fence is already higher
local fence = tonumber(string.match(redis.call('GET', KEYS[2]) or '0', '^%d+'))
if fence > tonumber(ARGV[3]) then
  return 0
end
if fence < tonumber(ARGV[3]) then
  redis.call('SET', KEYS[2], ARGV[3], 'EX', ARGV[4])
end
local now = redis.call('TIME')
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'turn', ARGV[1], 'token', ARGV[2], 'fence', ARGV[3], 'claimed_at', now[1])
return 1
