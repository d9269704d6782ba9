#!lua flags=no-writes
-- check_keys: which keys there are, and what can be seen of them at once.
-- Inputs:    where to go on (0 to begin); about how many; the pattern of all our keys
-- Outputs:   where to go on (0 at the end); names of flaws and what has them in turn; the indexes, without prefix;
--            causes whose number is not that of their open letters: cause and queue joined by NUL, kept, there are
-- Atomicity: one read

local INDEXES = {items = true, letters = true, ready = true, leased = true, ended = true}
local flaws, indexes, causes = {}, {}, {}

local function compare_cause(cause, there)
  local kept = tonumber(call('ZSCORE', P .. 'causes', cause) or 0)
  if kept ~= there then
    local size = #causes
    causes[size + 1], causes[size + 2], causes[size + 3] = cause, kept, there
  end
end

local scanned = call('SCAN', ARGV[2], 'MATCH', ARGV[4], 'COUNT', ARGV[3])
for _, key in ipairs(scanned[2]) do
  local name = string.sub(key, #P + 1)
  local kind, rest = string.match(name, '^(%a+):?(.*)$')
  local made = call('TYPE', key).ok
  if kind == 'attempts' and call('HEXISTS', P .. 'item', rest) == 0 then
    flaws[#flaws + 1] = 'attempt_alone'
    flaws[#flaws + 1] = rest
  elseif made == 'zset' and INDEXES[kind] then
    indexes[#indexes + 1] = name
    local cause = string.match(name, '^letters:cq:open:(.*)$')
    if cause then
      compare_cause(cause, call('ZCARD', key))
    end
  elseif name == 'causes' then
    for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
      if call('EXISTS', P .. 'letters:cq:open:' .. member) == 0 then
        compare_cause(member, 0)
      end
    end
  end
end
return {scanned[1], flaws, indexes, causes}
