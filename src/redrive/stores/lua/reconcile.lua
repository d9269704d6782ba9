#!lua flags=allow-oom
-- One step of putting right what a server that was restarted may have lost: every item is in exactly the sets that its
-- record says. How far it has come is kept, so whoever is killed in the middle leaves the rest to the next.
-- Inputs:    ARGV[2] the schema; ARGV[3] the run of the server; ARGV[4] who does it; ARGV[5] how many at a time;
--            ARGV[6] for how long nobody else goes on with it
-- Outputs:   0 if there is more to do, 1 if all is done, 2 if somebody else is at it; how many were put right so far
-- Atomicity: a step is whole, and may be repeated.

local MORE, DONE, ELSEWHERE = 0, 1, 2
local BOOT = sound(P .. 'boot', 'hash')
local run, me, count = ARGV[3], ARGV[4], ARGV[5]
local time = now()
local mended = 0

local function agree(key, score, member)
  local there = call('ZSCORE', sound(key, 'zset'), member)
  if not there or tonumber(there) ~= score then
    add(key, score, member)
    mended = mended + 1
  end
end

local function look_at_items(cursor)
  local found = call('HSCAN', sound(P .. 'item', 'hash'), cursor, 'COUNT', count)
  for index = 1, #found[2], 2 do
    local id, m = found[2][index], unpacked(found[2][index + 1])
    if m then
      agree(P .. 'items', m[SEQ], id)
      shares(id, m, agree)
      if m[STATE] == 'ready' then
        wake(m[QUEUE])
      end
    end
  end
  return found[1]
end

-- The sets from which work is taken, and those that are counted, in order.
local function sets()
  local keys = {P .. 'items', P .. 'letters'}
  for _, queue in ipairs(call('HKEYS', sound(P .. 'queues', 'hash'))) do
    for _, kind in ipairs({'ready:0:', 'leased:', 'ended:done:', 'ended:cancelled:'}) do
      keys[#keys + 1] = P .. kind .. queue
    end
    for _, level in ipairs(call('SMEMBERS', sound(P .. 'levels:' .. queue, 'set'))) do
      keys[#keys + 1] = P .. 'ready:' .. level .. ':' .. queue
    end
  end
  table.sort(keys)
  return keys
end

local function belongs(key, member)
  if key == P .. 'items' then
    return call('HEXISTS', P .. 'item', member) == 1
  end
  for _, id in ipairs({id_at(member), member}) do
    local m, mine = load(id), {}
    if m then
      shares(id, m, function(each, _, as)
        mine[each] = as
      end)
    end
    if mine[key] == member then
      return true
    end
  end
  return false
end

local function look_at_set(key, cursor)
  local found = call('ZSCAN', sound(key, 'zset'), cursor, 'COUNT', count)
  for index = 1, #found[2], 2 do
    if not belongs(key, found[2][index]) then
      remove(key, found[2][index])
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

-- After the set of this name, or the first where none is named.
local function next_set(name)
  for _, key in ipairs(sets()) do
    if key > name then
      return key
    end
  end
  return nil
end

local was = call('HMGET', BOOT, 'run', 'doing', 'who', 'until', 'at', 'cursor', 'mended')
if was[1] == run then
  return {DONE, 0}
end
if call('EXISTS', P .. 'item') == 0 and call('EXISTS', P .. 'items') == 0 then
  keep({'schema', ARGV[2], 'run', run})
  return {DONE, 0}
end
local at, cursor, before = '', '0', 0
if was[2] == run then
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
