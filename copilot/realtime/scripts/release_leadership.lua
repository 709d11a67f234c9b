-- Release the lead of a role, if the caller still holds it.
-- KEYS  1 leader
-- ARGV  1 holder
-- Answer 1 if it was released, else 0
if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
