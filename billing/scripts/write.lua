-- Copy states of rows, each with its version and lifetime; values are absolute, so order and repetition do no harm (B5.4).
-- KEYS  one per copy
-- ARGV  1 "publish" (only where a lower version is) | "create" (where nothing or a lower version is)
--         | "correct" (as publish; also write another value of the same version, and delete a higher version);
--       then per copy: version, value, the instant it ends in milliseconds
-- A key holds "<version> <value>". What is not of that form counts as missing when created, as older otherwise.
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
