#!lua flags=no-writes
-- check_keys: which keys there are, and what can be seen of them at once.
-- Inputs:    where to go on (0 to begin); about how many; the pattern of all our keys
-- Outputs:   where to go on (0 at the end); names of flaws and what has them in turn; the indexes, without prefix;
--            causes whose number is not that of their open letters: cause and queue joined by NUL, kept, there are; the same
--            of routes; index and member in turn of entries of small sets that bind items, and have no reason to be there;
--            the hashes of lines
-- Atomicity: one read
-- Uses: tags ledger lines truth

local INDEXES = {
  items = true, letters = true, ready = true, held = true, leased = true, ended = true,
  asides = true, parked = true, windows = true,
}
local SMALL = 100
local flaws, indexes, causes, routes, strays, lines = {}, {}, {}, {}, {}, {}

local function compare(list, key, name, there)
  local kept = tonumber(call('ZSCORE', P .. key, name) or 0)
  if kept ~= there then
    local size = #list
    list[size + 1], list[size + 2], list[size + 3] = name, kept, there
  end
end

-- There may be two for each item that waits: they are looked at here.
local function look_at_binding(name, key)
  if call('ZCARD', key) > SMALL then
    indexes[#indexes + 1] = name
    return
  end
  local found = call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for at = 1, #found, 2 do
    if not is_reasonable(name, tonumber(found[at + 1]), found[at]) then
      strays[#strays + 1] = name
      strays[#strays + 1] = found[at]
    end
  end
end

-- A set of those set aside that is not listed is not found when the limit is lifted.
local function look_at_aside(rest)
  local queue, limit_key = string.match(rest, '^([^%z]*)%z(.*)$')
  if queue and not call('ZSCORE', P .. 'asides:' .. queue, limit_key) then
    flaws[#flaws + 1] = 'aside_unlisted'
    flaws[#flaws + 1] = rest
  end
end

local function compare_members(list, key, sets)
  for _, member in ipairs(call('ZRANGE', P .. key, 0, -1)) do
    if call('EXISTS', P .. sets .. member) == 0 then
      compare(list, key, member, 0)
    end
  end
end

local function look_at_index(name, key)
  indexes[#indexes + 1] = name
  local cause, route = string.match(name, '^letters:cq:open:(.*)$'), string.match(name, '^letters:r:open:(.*)$')
  if cause then
    compare(causes, 'causes', cause, call('ZCARD', key))
  elseif route then
    compare(routes, 'routes', route, call('ZCARD', key))
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
  elseif kind == 'revisions' and call('HEXISTS', P .. 'item', rest) == 0 then
    flaws[#flaws + 1] = 'revision_alone'
    flaws[#flaws + 1] = rest
  elseif made == 'zset' and BINDING[kind] then
    look_at_binding(name, key)
    if kind == 'aside' then
      look_at_aside(rest)
    end
  elseif made == 'zset' and INDEXES[kind] then
    look_at_index(name, key)
  elseif made == 'hash' and kind == 'lines' then
    lines[#lines + 1] = name
  elseif name == 'causes' then
    compare_members(causes, name, 'letters:cq:open:')
  elseif name == 'routes' then
    compare_members(routes, name, 'letters:r:open:')
  end
end
return {scanned[1], flaws, indexes, causes, routes, strays, lines}
