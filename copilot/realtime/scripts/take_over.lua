-- A turn changes hands after its worker was lost: the lease waits for the next worker under a higher fence (T9.1).
-- KEYS  1 lease  2 fence
-- ARGV  1 turn id  2 owner token  3 new fence  4 fence seconds
-- Answer 1, or 0 when the fence already stands higher
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
