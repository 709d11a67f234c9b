-- Renew a question aside, or let it go, if it still is this one.
-- KEYS  1 aside
-- ARGV  1 its id  2 lifetime in seconds (0 = let it go)
-- Answer 1 | 0
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then
  return 0
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
