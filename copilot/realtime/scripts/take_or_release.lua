-- The last act of a turn: keep the session for what is queued, or let it go (T4.4, T6.3, T7.4).
-- KEYS  1 lease  2 queue  3 accept number up to which a stop between two turns covers
-- ARGV  1 owner token  2 keep-through: plain messages accepted up to here stay as chips ("" = none stays)
--       3 id and 4 token of the turn that would follow
-- Answer {"kept" (the lease now belongs to the turn that follows) | "released" | "lost" (somebody else's lease),
--         1 if the lease bore this turn's fence, else 0: Redis lost it since, and maybe what the log was told}
-- A queue member is "<accept number>:<r if it bears a run_id, else ->:<message id>".
-- Repeating it with the same arguments changes nothing, so a retry after a lost answer is safe.
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
