-- Count connections of one process as closed.
-- KEYS  a count for each connection that was closed, with repetitions
-- ARGV  1 this process
-- Answer nothing
for _, key in ipairs(KEYS) do
  if redis.call('HINCRBY', key, ARGV[1], -1) <= 0 then
    redis.call('HDEL', key, ARGV[1])
  end
end
