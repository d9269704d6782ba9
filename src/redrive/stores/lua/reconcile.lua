#!lua flags=allow-oom
-- One step of putting right what a server that was restarted may have lost, and of bringing an earlier layout to this one:
-- every item is in exactly the sets that its record says. The position is stored, so that another process can go on from it.
-- Inputs:    ARGV[2] the schema; ARGV[3] the run of the server; ARGV[4] who does it; ARGV[5] how many at a time;
--            ARGV[6] for how long nobody else goes on with it
-- Outputs:   0 if there is more to do, 1 if all is done, 2 if somebody else is at it; how many were put right so far
-- Atomicity: a step is whole, and may be repeated.
-- Uses: tags ledger lines truth

local MORE, DONE, ELSEWHERE = 0, 1, 2
local BOOT = sound(P .. 'boot', 'hash')
local run, me, count = ARGV[3], ARGV[4], ARGV[5]
local time = now()
local mended = 0

local function look_at_items(cursor)
  local found, records = call('HSCAN', sound(ITEM, 'hash'), cursor, 'COUNT', count), {}
  for index = 1, #found[2], 2 do
    -- One that cannot be read is left for who checks.
    records[found[2][index]] = unpacked(found[2][index + 1])
  end
  for id, verdict in pairs(misplaced(records)) do
    local m = records[id]
    if verdict ~= IMPOSSIBLE then
      add(P .. 'items', m[SEQ], id)
      places(id, m, add)
      mended = mended + 1
      if m[STATE] == 'ready' then
        wake(m[QUEUE])
      end
    end
  end
  return found[1]
end

-- The sets from which work is taken, and those that are counted, in an order that stays. An entry too many in any other set,
-- as those of tags, misleads nobody: whoever finds an item by it looks at its record.
local function sets()
  local keys = {P .. 'items', P .. 'letters'}
  for _, queue in ipairs(call('HKEYS', sound(P .. 'queues', 'hash'))) do
    for _, kind in ipairs({'ready:0:', 'held:', 'parks:', 'leased:', 'ended:done:', 'ended:cancelled:'}) do
      keys[#keys + 1] = P .. kind .. queue
    end
    for _, rank in ipairs(call('SMEMBERS', sound(P .. 'levels:' .. queue, 'set'))) do
      keys[#keys + 1] = ready_key(queue, rank)
    end
  end
  table.sort(keys)
  return keys
end

local function look_at_set(key, cursor)
  local found = call('ZSCAN', sound(key, 'zset'), cursor, 'COUNT', count)
  for index = 1, #found[2], 2 do
    local member, score = found[2][index], tonumber(found[2][index + 1])
    -- In some sets the number of the item stands before its id.
    if not is_mine(member, key, score, member) and not is_mine(id_at(member), key, score, member) then
      remove(key, member)
      mended = mended + 1
    end
  end
  return found[1]
end

local function keep(fields)
  for index = 1, #fields, 2 do
    set(BOOT, fields[index], fields[index + 1])
  end
  write()
end

-- The one after it; the first where there is none of this name (any more).
local function next_set(name)
  local keys = sets()
  for index, key in ipairs(keys) do
    if key == name then
      return keys[index + 1]
    end
  end
  return keys[1]
end

local was = call('HMGET', BOOT, 'run', 'doing', 'who', 'until', 'at', 'cursor', 'mended', 'schema')
local is_earlier = was[8] and was[8] ~= ARGV[2]
if was[1] == run and not is_earlier then
  return {DONE, 0}
end
if call('EXISTS', ITEM) == 0 and call('EXISTS', P .. 'items') == 0 then
  keep({'schema', ARGV[2], 'run', run})
  return {DONE, 0}
end
local at, cursor, before = '', '0', 0
if is_earlier then
  -- From here on processes that do not know this layout are refused.
  set(BOOT, 'schema', ARGV[2])
  set(BOOT, 'run', '')
elseif was[2] == run then
  if was[3] ~= me and tonumber(was[4]) > time then
    return {ELSEWHERE, 0}
  end
  at, cursor, before = was[5], was[6], tonumber(was[7])
end

if at == '' then
  cursor = look_at_items(cursor)
else
  cursor = look_at_set(at, cursor)
end
if cursor == '0' then
  at = next_set(at)
end
if not at then
  keep({'schema', ARGV[2], 'run', run, 'doing', '', 'who', ''})
  return {DONE, before + mended}
end
keep({'doing', run, 'who', me, 'until', time + tonumber(ARGV[6]), 'at', at, 'cursor', cursor, 'mended', before + mended})
return {MORE, before + mended}
