-- Let a lease go, if it is still the caller's.
-- KEYS  1 lease
-- ARGV  1 owner token
-- Answer 1 if it was the caller's, else 0
if redis.call('HGET', KEYS[1], 'token') == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
