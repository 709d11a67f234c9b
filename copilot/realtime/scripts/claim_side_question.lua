-- Store a side question, unless the session has one in progress.
-- KEYS  1 side question
-- ARGV  1 id of the side question  2 user id  3 question  4 lifetime in seconds
-- Answer 1 if it was stored, else 0
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'user', ARGV[2], 'question', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
