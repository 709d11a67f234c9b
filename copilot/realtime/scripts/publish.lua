-- Append events to the logs of several sessions, and tell the readers of all web processes at once (T8).
-- A batch that came through and whose answer was lost is recognised when it comes again: a guarded one by its number,
-- kept beside the fence ("<fence>:<number>"), any other by a mark of its own that holds its last cursor.
-- KEYS  1 live number; then per session: log, and the fence of a guarded batch or the mark of another
-- ARGV  1 live channel  2 log length  3 log lifetime in seconds  4 number of sessions;
--       then per session: session id, user id, fence ("" = not guarded),
--       guarded: the batch's number; else: the cursor after which it must come ("" = wherever),
--       "1" to renew the lifetime, number of events, and per event: kind, payload
-- Answer per session: the last cursor | "refused" (a newer fence owns the log) | "unknown" (no fence is known here)
--       | "done" (a guarded batch that came before) | "late" (the log has gone on from that cursor)
local MARK_SECONDS = 60 -- longer than anybody tries again
local answers, news, guards, at = {}, {}, {}, 5
for index = 1, tonumber(ARGV[4]) do
  guards[index] = KEYS[2 * index + 1]
end
local standings = redis.call('MGET', unpack(guards))

local function guarded(standing, fence, number)
  if not standing then
    return 'unknown'
  end
  local owner, last = string.match(standing, '^(%d+):?(%d*)$')
  if tonumber(owner) > tonumber(fence) then
    return 'refused'
  end
  if owner == fence and last ~= '' and tonumber(last) >= tonumber(number) then
    return 'done'
  end
  return 'ok'
end

local function unguarded(standing, log, after)
  if standing then
    return standing
  end
  if after ~= '' then
    local newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
    if (newest and newest[1] or '0-0') ~= after then
      return 'late'
    end
  end
  return 'ok'
end

for index = 1, tonumber(ARGV[4]) do
  local session, user, fence, place, renew = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local count = tonumber(ARGV[at + 5])
  at = at + 6
  local log = KEYS[2 * index]
  local answer
  if fence ~= '' then
    answer = guarded(standings[index], fence, place)
  else
    answer = unguarded(standings[index], log, place)
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
    if fence ~= '' then
      redis.call('SET', guards[index], fence .. ':' .. place, 'KEEPTTL')
    else
      redis.call('SET', guards[index], answer, 'EX', MARK_SECONDS)
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
