-- Take one call back from a fixed window, if the window still stands.
-- KEYS  1 counter
-- Answer calls left in it
if redis.call('EXISTS', KEYS[1]) == 1 then
  return redis.call('DECR', KEYS[1])
end
return 0
