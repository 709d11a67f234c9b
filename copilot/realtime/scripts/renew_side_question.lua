-- Renew or remove a side question, if it is still the one in progress.
-- KEYS  1 side question
-- ARGV  1 id of the side question  2 lifetime in seconds (0 = remove it)
-- Answer 1 if it is the one in progress, else 0
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then
  return 0
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
