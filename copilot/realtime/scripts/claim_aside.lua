-- Begin a question aside, unless one is under way.
-- KEYS  1 aside
-- ARGV  1 its id  2 user id  3 question  4 lifetime in seconds
-- Answer 1 | 0
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'user', ARGV[2], 'question', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
