-- Count one more open connection of an account and an address, unless one of them is at its limit.
-- Counts of processes that are no longer alive are removed on the way.
-- KEYS  1 count of the account  2 count of the address  3 key that proves this process is alive
-- ARGV  1 id of this process  2 prefix of the keys that prove processes alive  3 limit of the account
--       4 limit of the address  5 lifetime of the process key in seconds  6 lifetime of the counts in seconds
-- Answer 0 counted | 1 the account is at its limit | 2 the address is at its limit
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
