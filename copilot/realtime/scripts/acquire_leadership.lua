-- Take or keep the lead of a role, if it is free, the caller's own, or held by somebody with a higher rank number.
-- KEYS  1 leader
-- ARGV  1 holder  2 rank (the lower number wins)  3 lifetime in milliseconds
-- Answer 1 if the caller leads now, else 0
local held = redis.call('HMGET', KEYS[1], 'holder', 'rank')
if held[1] and held[1] ~= ARGV[1] and tonumber(held[2]) <= tonumber(ARGV[2]) then
  return 0
end
if held[1] ~= ARGV[1] then
  redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'rank', ARGV[2])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
