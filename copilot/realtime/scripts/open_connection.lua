-- Count one more open connection of an account and an address, unless either has as many as it may have.
-- KEYS  1 connections of the account, 2 connections of the address, 3 sign of life of this process
-- ARGV  1 this process, 2 what other processes' signs of life begin with, 3 limit of the account, 4 limit of the address,
--       5 life of the sign in seconds, 6 life of the counts in seconds
-- Answer 0 counted, 1 the account is full, 2 the address is full
redis.call('SET', KEYS[3], '1', 'EX', ARGV[5])

local function count(key)
  local total = 0
  local held = redis.call('HGETALL', key)
  for i = 1, #held, 2 do
    if redis.call('EXISTS', ARGV[2] .. held[i]) == 1 then
      total = total + tonumber(held[i + 1])
    else
      redis.call('HDEL', key, held[i])
    end
  end
  return total
end

for i = 1, 2 do
  if count(KEYS[i]) >= tonumber(ARGV[2 + i]) then
    return i
  end
end
for i = 1, 2 do
  redis.call('HINCRBY', KEYS[i], ARGV[1], 1)
  redis.call('EXPIRE', KEYS[i], ARGV[6])
end
return 0
