-- New items, for put and for the follow-ups of settle.
-- Inputs:    put(entries, time, full): entries of {id, queue, delay, body} and, for what is not plain, {…, due at or false,
--            priority, ties, terms or false}; terms as lines.lua has them. `full` asks for room in the queues
-- Outputs:   the places of those entries whose id is taken already; place and holder in turn of those whose dedupe key is
--            held; nil, or why nothing may be added: {'after', place, awaited id} or {'full', {queue, fill, capacity, more}, …}
-- Atomicity: notes down; the script writes.

local function taken_ids(entries)
  local ids, taken = {}, {}
  for index = 1, #entries do
    ids[index] = entries[index][1]
  end
  -- A pruned id counts as there: the late repeat of an old put must not run the work again.
  local hashes = {P .. 'item'}
  if call('EXISTS', sound(P .. 'tombstones', 'hash')) == 1 then
    hashes[2] = P .. 'tombstones'
  end
  for _, key in ipairs(hashes) do
    local found = fetch(sound(key, 'hash'), ids)
    for index = 1, #ids do
      if found[index] then
        taken[ids[index]] = true
      end
    end
  end
  return taken
end

-- By queue: how many are added. A queue that is not declared is; of one that is, what limits it.
local added, capacities = {}, {}
local function count_added(queue)
  if added[queue] then
    added[queue] = added[queue] + 1
    return
  end
  added[queue] = 1
  local kept = call('HGET', sound(P .. 'queues', 'hash'), queue)
  if not kept then
    set(P .. 'queues', queue, cmsgpack.pack({false, '', ''}))
    return
  end
  local declared = list_of(kept)
  capacities[queue] = declared and declared[4] and declared[4][5] or nil
end

-- What waits or runs.
local function fill_of(queue)
  local fill = call('ZCARD', sound(P .. 'held:' .. queue, 'zset')) + call('ZCARD', sound(leased_key(queue), 'zset'))
  local levels = call('SMEMBERS', sound(P .. 'levels:' .. queue, 'set'))
  levels[#levels + 1] = '0'
  for _, level in ipairs(levels) do
    fill = fill + call('ZCARD', sound(ready_key(queue, level), 'zset'))
  end
  return fill
end

local function overfull()
  local found = {'full'}
  for queue, capacity in pairs(capacities) do
    local fill = fill_of(queue)
    if fill + added[queue] > capacity then
      found[#found + 1] = {queue, fill, capacity, added[queue]}
    end
  end
  return found[2] and found or nil
end

-- The state of an item that is or was there, and its record where it is to be changed.
local function state_of(id)
  local m = touched[id] or load(id)
  if m and m[STATE] == 'done' then
    return 'done'
  elseif m then
    return m[STATE], touched[id] or adopt(id, m)
  end
  local kept = call('HGET', sound(P .. 'tombstones', 'hash'), id)
  local read, facts = pcall(cjson.decode, kept and string.sub(kept, 17) or '')
  return read and type(facts) == 'table' and facts[2] or nil
end

-- An edge to each of `after` that is not done. Gives whether one of them is dead or cancelled, or the id of an unknown one.
local function await_all(id, m)
  local doomed = false
  for _, awaited in ipairs(m[TERMS][AFTER]) do
    local state, its = state_of(awaited)
    if not state then
      return nil, awaited
    end
    if state ~= 'done' then
      await(id, m, awaited, its and its[SEQ] or 0)
      if its then
        widened(its)[TIES] = bor(its[TIES], AWAITED)
      end
      doomed = doomed or state == 'dead' or state == 'cancelled'
    end
  end
  return doomed
end

local function new_record(seq, entry, time)
  local due = time + entry[3]
  local m = {
    seq, entry[2], 'ready', time, due, time, 0, 0, 0, 0, 0, false, false, false, false, false, false, 0, false,
  }
  if entry[6] then
    m[DUE_AT] = entry[5] and math.max(due, entry[5]) or due
    m[PRIORITY], m[HOLD], m[TIES], m[TERMS] = entry[6], 0, entry[7], entry[8]
  end
  return m
end

-- Of those with ties: their places in lines, what they wait for, and who dies of it at once.
local function bind(bound, time)
  local doomed = {}
  for _, one in ipairs(bound) do
    local id, m = one[1], one[2]
    if tied(m, WAITS) then
      local dies, unknown = await_all(id, m)
      if unknown then
        return {'after', one[3], unknown}
      end
      if dies and m[TERMS][ON_DEAD] == 'die' then
        doomed[#doomed + 1] = one
      end
    end
  end
  for _, one in ipairs(bound) do
    if tied(one[2], ORDERED) then
      join(one[1], one[2])
    end
    hold_again(one[1], one[2])
  end
  for _, one in ipairs(doomed) do
    die_of_dependency(one[1], one[2], time)
  end
  return nil
end

-- The holder of its dedupe key, if another has it; else it is this item's.
local function claimed_by_another(id, m, time)
  if not tied(m, DEDUPED) then
    return nil
  end
  local holder = holder_of(field_of(m[QUEUE], m[TERMS]), time)
  if not holder then
    claim(id, m)
  end
  return holder
end

-- Whether one of them waits for others, which may be of the same call.
local function any_waits(entries)
  for _, entry in ipairs(entries) do
    if entry[7] and band(entry[7], WAITS) ~= 0 then
      return true
    end
  end
  return false
end

local function put(entries, time, full)
  local already, duplicates, bound = {}, {}, {}
  if #entries == 0 then
    return already, duplicates
  end
  local taken, together = taken_ids(entries), any_waits(entries)
  local first = tonumber(call('HGET', sound(P .. 'sequence', 'hash'), 'item') or 0)
  if not first then
    refuse('CORRUPT the number of the last item is none')
  end
  local seq = first
  for index, entry in ipairs(entries) do
    local id = entry[1]
    local m = not taken[id] and new_record(seq + 1, entry, time)
    local holder = m and m[TIES] and claimed_by_another(id, m, time)
    if not m then
      already[#already + 1] = index
    elseif holder then
      duplicates[#duplicates + 1], duplicates[#duplicates + 2] = index, holder
    else
      taken[id] = true
      seq = seq + 1
      count_added(entry[2])
      add(P .. 'items', seq, id)
      set(P .. 'body', id, entry[4])
      if (m[TIES] or 0) > 0 then
        bound[#bound + 1] = {id, touch(id, m), index}
      elseif together then
        touch(id, m)
      else
        lay(id, m)
      end
    end
  end
  if seq > first then
    set(P .. 'sequence', 'item', string.format('%.0f', seq))
  end
  return already, duplicates, bind(bound, time) or (full and overfull()) or nil
end
