-- Place a hold for one turn if both windows have room for it, and return the copies it was decided from.
-- KEYS  1 holds (hash: id → "<amount> <ends in ms>")  2 day's counter  3 week's counter  4 entitlement
-- ARGV  1 hold id  2 amount  3 lifetime in ms; then per tier: name, daily limit, weekly limit (0 = none)
-- Answer: {"stored" | "missing" (a needed copy) | "full", the amount that other turns hold,
--          the day's counter, the week's counter, the entitlement; each "" if missing}
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
local copies = redis.call('MGET', KEYS[2], KEYS[3], KEYS[4])
local function answer(verdict)
  return { verdict, held, copies[1] or '', copies[2] or '', copies[3] or '' }
end
local tier, daily, weekly = string.match(copies[3] or '', '^%d+ (%S+) (%S+) (%S+)$')
local limits
for at = 4, #ARGV, 3 do
  if ARGV[at] == tier then
    limits = { tonumber(daily) or tonumber(ARGV[at + 1]), tonumber(weekly) or tonumber(ARGV[at + 2]) }
  end
end
if not limits then
  return answer('missing')
end
for window = 1, 2 do
  if limits[window] > 0 then
    local used = string.match(copies[window] or '', '^%d+ (%d+)$')
    if not used then
      return answer('missing')
    end
    if tonumber(used) >= limits[window] or (not mine and tonumber(used) + held >= limits[window]) then
      return answer('full')
    end
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now + ARGV[3]))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return answer('stored')
