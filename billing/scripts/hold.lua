-- Hold an amount for one turn, if both windows have room beside what is used and what others hold (B6.7).
-- KEYS  1 holds (hash: id → "<amount> <ends in ms>")  2 day's counter  3 week's counter
-- ARGV  1 hold id  2 amount  3 lifetime in ms  4 daily limit  5 weekly limit (0 = none)
-- Answer: {"stored" | "missing" (a counter that is needed) | "full", what others hold}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held, mine, entries = 0, false, redis.call('HGETALL', KEYS[1])
for index = 1, #entries, 2 do
  local amount, ends = string.match(entries[index + 1], '^(%d+) (%d+)$')
  if not ends or tonumber(ends) <= now then
    redis.call('HDEL', KEYS[1], entries[index])
  elseif entries[index] == ARGV[1] then
    mine = true
  else
    held = held + tonumber(amount)
  end
end
if not mine then
  for window = 1, 2 do
    local limit = tonumber(ARGV[3 + window])
    if limit > 0 then
      local used = string.match(redis.call('GET', KEYS[1 + window]) or '', '^%d+ (%d+)$')
      if not used then
        return { 'missing', held }
      end
      if tonumber(used) + held >= limit then
        return { 'full', held }
      end
    end
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now + ARGV[3]))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return { 'stored', held }
