-- End a turn: give its lease to the next turn if a queued message starts one, else release it.
-- A queue member is "<accept number>:<r if it has a run_id, else ->:<message id>".
-- A retry with the same arguments changes nothing, so it is safe after a lost answer.
-- KEYS  1 lease  2 queue  3 accept number up to which a stop between two turns holds messages back
-- ARGV  1 owner token  2 keep-through: messages without a run_id accepted up to here stay queued ("" = none)
--       3 id of the next turn  4 owner token of the next turn
-- Answer {"kept" (the next turn has the lease) | "released" | "lost" (another owner has the lease),
--         1 if the lease had a fence, else 0: Redis has lost it since, and maybe events of the log too}
local token, fence = unpack(redis.call('HMGET', KEYS[1], 'token', 'fence'))
if token == ARGV[4] and token ~= ARGV[1] then
  return {'kept', 1}
end
if token and token ~= ARGV[1] then
  return {'lost', 1}
end
local remembered = fence and 1 or 0
local keep_through = math.max(tonumber(ARGV[2]) or -1, tonumber(redis.call('GET', KEYS[3]) or '-1'))
for _, member in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local number, flag = string.match(member, '^(%d+):(.)')
  if flag == 'r' or tonumber(number) > keep_through then
    local now = redis.call('TIME')
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[1], 'turn', ARGV[3], 'token', ARGV[4], 'claimed_at', now[1])
    return {'kept', remembered}
  end
end
redis.call('DEL', KEYS[1])
return {'released', remembered}
