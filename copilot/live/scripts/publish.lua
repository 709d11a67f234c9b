-- Append events to the logs of several sessions, and tell the readers of all web processes at once (T8).
-- KEYS  1 live number; then per session: log, fence
-- ARGV  1 live channel  2 log length  3 log lifetime in seconds  4 number of sessions;
--       then per session: session id, user id, fence ("" = not guarded), "1" to renew the lifetime, number of events,
--       and per event: kind, payload
-- Answer per session: the last cursor | "refused" (a newer fence owns the log) | "unknown" (no fence is known here)
local answers, news, fences, at = {}, {}, {}, 5
for index = 1, tonumber(ARGV[4]) do
  fences[index] = KEYS[2 * index + 1]
end
local standings = redis.call('MGET', unpack(fences))
for index = 1, tonumber(ARGV[4]) do
  local session, user, fence, renew, count = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  at = at + 5
  local log = KEYS[2 * index]
  local answer = 'ok'
  if fence ~= '' then
    local standing = standings[index]
    if not standing then
      answer = 'unknown'
    elseif tonumber(standing) > tonumber(fence) then
      answer = 'refused'
    end
  end
  if answer == 'ok' then
    local entries = {}
    for event = 0, count - 1 do
      local kind, payload = ARGV[at + 2 * event], ARGV[at + 2 * event + 1]
      answer = redis.call('XADD', log, 'MAXLEN', '~', ARGV[2], '*', 'k', kind, 'e', payload)
      entries[#entries + 1] = {answer, kind, payload}
    end
    if renew == '1' then
      redis.call('EXPIRE', log, ARGV[3])
    end
    news[#news + 1] = {session, user, entries}
  end
  answers[index] = answer
  at = at + 2 * count
end
if #news > 0 then
  redis.call('PUBLISH', ARGV[1], cmsgpack.pack({redis.call('INCR', KEYS[1]), news}))
end
return answers
