-- Subtract closed connections of one process from their counts.
-- KEYS  one count per closed connection; a count may occur several times
-- ARGV  1 id of this process
-- Answer nil
for _, key in ipairs(KEYS) do
  if redis.call('HINCRBY', key, ARGV[1], -1) <= 0 then
    redis.call('HDEL', key, ARGV[1])
  end
end
