-- Of new items: what they wait for, their places in lines, their dedupe keys, and the room that they need.
-- Inputs:    bind(items with ties as {id, record, place in the call}, time); claimed_by_another(id, record, time);
--            await_all(id, record, whether it is new); overfull(how many are added, capacities), both by queue; fill_of(queue)
-- Outputs:   nil, or why nothing may be added, as putting.lua says; the holder; whether one that it waits for is dead or
--            cancelled, or nil, what is wrong and the id of one that it cannot wait for; how many wait or run
-- Atomicity: reads and notes down; the script writes.

-- What waits or runs.
local function fill_of(queue)
  if string.sub(queue, -2) == ':*' then
    return kin.counted(queue, 'ready') + kin.counted(queue, 'held') + kin.counted(queue, 'leased')
  end
  local fill = call('ZCARD', sound(P .. 'held:' .. queue, 'zset')) + call('ZCARD', sound(leased_key(queue), 'zset'))
  local levels = call('SMEMBERS', sound(P .. 'levels:' .. queue, 'set'))
  levels[#levels + 1] = '0'
  for _, rank in ipairs(levels) do
    fill = fill + call('ZCARD', sound(ready_key(queue, rank), 'zset'))
  end
  return fill
end

local function overfull(added, capacities)
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

local function is_hopeless(state, its)
  return state == 'cancelled' or state == 'dead' and not its
end

-- The first of `after` that can never be done, or that nobody knows here: a letter that was taken in may have such.
local function first_hopeless(m)
  for _, awaited in ipairs(m[TERMS][AFTER]) do
    local state, its = state_of(awaited)
    if not state or is_hopeless(state, its) then
      return awaited, state and 'vain' or 'unknown'
    end
  end
end

-- An edge to each of `after` that is not done. Gives whether one of them is dead or cancelled. A new one cannot wait for what
-- nobody knows, nor, unless it dies at once, for what can never be done.
local function await_all(id, m, new)
  local doomed = false
  for _, awaited in ipairs(m[TERMS][AFTER]) do
    local state, its = state_of(awaited)
    if not state then
      return nil, 'after', awaited
    end
    if new and m[TERMS][ON_DEAD] ~= 'die' and is_hopeless(state, its) then
      return nil, 'never', awaited
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

-- Of those with ties: their places in lines, what they wait for, and who dies of it at once.
local function bind(bound, time)
  local doomed = {}
  for _, one in ipairs(bound) do
    local id, m = one[1], one[2]
    if tied(m, WAITS) then
      local dies, wrong, awaited = await_all(id, m, true)
      if wrong then
        return {wrong, one[3], awaited}
      end
      if dies and m[TERMS][ON_DEAD] == 'die' then
        doomed[#doomed + 1] = one
      end
    end
  end
  for _, one in ipairs(bound) do
    if tied(one[2], ORDERED) then
      join(one[1], one[2], one[2][SEQ])
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
