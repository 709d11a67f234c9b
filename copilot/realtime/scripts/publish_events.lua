-- Append events to the logs of several sessions, and publish them to all web processes in one message.
-- A batch that is sent again after a lost answer is not logged twice: a fenced batch is recognised by its number, which
-- is stored with the fence ("<fence>:<number>"), any other by a mark of its own that holds its last cursor.
-- KEYS  1 live number; then per session: log, and the fence of a fenced batch or the mark of another
-- ARGV  1 live channel  2 log length  3 log lifetime in seconds  4 number of sessions;
--       then per session: session id, user id, fence ("" = not fenced),
--       the number of a fenced batch, or the cursor at which the log must end for another ("" = any),
--       "1" to renew the lifetime, number of events, and per event: kind, payload
-- Answer per session: the last cursor | "refused" (a newer fence owns the log) | "unknown" (Redis has no fence)
--       | "done" (a fenced batch that was logged before) | "late" (the log does not end at that cursor)
local MARK_SECONDS = 60 -- longer than any publisher retries
local answers, batches, guards, at = {}, {}, {}, 5
for index = 1, tonumber(ARGV[4]) do
  guards[index] = KEYS[2 * index + 1]
end
local stored = redis.call('MGET', unpack(guards))

local function check_fenced(value, fence, number)
  if not value then
    return 'unknown'
  end
  local owner, last = string.match(value, '^(%d+):?(%d*)$')
  if tonumber(owner) > tonumber(fence) then
    return 'refused'
  end
  if owner == fence and last ~= '' and tonumber(last) >= tonumber(number) then
    return 'done'
  end
  return 'ok'
end

local function check_unfenced(mark, log, after)
  if mark then
    return mark
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
    answer = check_fenced(stored[index], fence, place)
  else
    answer = check_unfenced(stored[index], log, place)
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
    batches[#batches + 1] = {session, user, entries}
  end
  answers[index] = answer
  at = at + 2 * count
end
if #batches > 0 then
  redis.call('PUBLISH', ARGV[1], cmsgpack.pack({redis.call('INCR', KEYS[1]), batches}))
end
return answers
