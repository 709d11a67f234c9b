-- Release a lease, if the caller still owns it.
-- KEYS  1 lease
-- ARGV  1 owner token
-- Answer 1 if it was released, else 0
if redis.call('HGET', KEYS[1], 'token') == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
