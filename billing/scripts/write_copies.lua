-- Write copies of rows, each with its version and expiry. Values are absolute, so order and repetition do no harm.
-- KEYS  one per copy
-- ARGV  1 "publish" (replace a lower version) | "create" (fill a gap or replace a lower version)
--         | "correct" (like publish, but also replace a different value of the same version and delete a higher version);
--       then per copy: version, value, expiry as Unix time in milliseconds
-- A key holds "<version> <value>"; anything else counts as an older version. Answer: the number of keys.
local how, at = ARGV[1], 2
for _, key in ipairs(KEYS) do
  local version, value, ends = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  local known = redis.call('GET', key)
  local text, rest = string.match(known or '', '^(%d+) (.*)$')
  local standing = tonumber(text) or -1
  if how == 'correct' and standing > version then
    redis.call('DEL', key)
  elseif (known or how == 'create') and (standing < version or (how == 'correct' and rest ~= value)) then
    redis.call('SET', key, string.format('%.0f', version) .. ' ' .. value, 'PXAT', ends)
  end
  at = at + 3
end
return #KEYS
