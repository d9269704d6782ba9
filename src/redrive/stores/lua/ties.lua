-- What becomes of others when an item ends: those behind it in its line, those that wait for it, those set aside for it.
-- Inputs:    ended(id, record) for each that ended, then conclude(time); hold_again(id, record) for a ready one;
--            claim, holder_of, release_key for dedupe keys; await and give_up for dependencies; let_next for limit keys
-- Outputs:   none
-- Atomicity: reads and notes down. Everything that ends in a script has ended before anything is moved for it.
-- Keys:      dedupe hash, scope NUL key -> its holder, and until when it has it after its end; windows zset, until -> the same;
--            waits:<id>, awaited:<id> zset, number -> id of those it waits for, and of those that wait for it;
--            slot:<queue> zset, 0 -> limit key NUL id of the leased; aside:<queue> NUL <key> zset, number -> id of those that
--            have the hold `limit`; asides:<queue> zset, 0 -> limit key that has any

-- --- dedupe keys ---

local claims, claimed_before = {}, {}
local with_asides = {}

local function read_claim(field, kept)
  local holder = list_of(kept) or false
  claims[field], claimed_before[field] = holder, holder
end

local function claim_of(field)
  if claims[field] == nil then
    read_claim(field, call('HGET', sound(P .. 'dedupe', 'hash'), field))
  end
  return claims[field]
end

local function field_of(queue, terms)
  return (terms[SCOPE] == 'queue' and queue or '') .. '\0' .. terms[DEDUPE_KEY]
end

-- A live item, or one that is done while its window lasts.
local function holder_of(field, time)
  local holder = claim_of(field)
  return holder and (not holder[2] or holder[2] > time) and holder[1] or nil
end

local function claim(id, m)
  local field = field_of(m[QUEUE], m[TERMS])
  claim_of(field)
  claims[field] = {id, false}
end

local function release_key(id, m, time)
  local field, window = field_of(m[QUEUE], m[TERMS]), m[TERMS][WINDOW]
  local holder = claim_of(field)
  if not holder or holder[1] ~= id then
    return
  end
  local ends = window and m[ENQUEUED_AT] + window
  claims[field] = m[STATE] == 'done' and ends and ends > time and {id, ends} or false
end

before_write[#before_write + 1] = function()
  for field, holder in pairs(claims) do
    local before = claimed_before[field]
    if holder ~= before then
      if holder then
        set(P .. 'dedupe', field, cmsgpack.pack(holder))
      else
        unset(P .. 'dedupe', field)
      end
      if holder and holder[2] then
        add(P .. 'windows', holder[2], field)
      elseif before and before[2] then
        remove(P .. 'windows', field)
      end
    end
  end
  claims, claimed_before = {}, {}
end

-- --- dependencies ---

local function await(id, m, awaited, number)
  enlist(P .. 'waits:' .. id, number, awaited)
  enlist(P .. 'awaited:' .. awaited, m[SEQ], id)
end

local function give_up(id)
  local key = P .. 'waits:' .. id
  for _, awaited in ipairs(all_in(key)) do
    delist(key, awaited)
    delist(P .. 'awaited:' .. awaited, id)
  end
end

-- What a ready item has to wait for, as far as that is known here: a lease may set it aside besides.
local function hold_again(id, m)
  if tied(m, PARKED_ITEM) then
    m[HOLD] = HELD_PARKED
  elseif tied(m, WAITS) and count_in(P .. 'waits:' .. id) > 0 then
    m[HOLD] = HELD_AFTER
  elseif tied(m, ORDERED) and line_of_item(m).head ~= id then
    m[HOLD] = HELD_ORDER
  else
    m[HOLD] = 0
  end
end

-- --- limit keys ---

local function slot_key(queue)
  return P .. 'slot:' .. queue
end

-- How many of a limit key run: those of one key stand together. Asked once, and counted on from there.
local running = {}
local function running_of(queue, limit_key)
  local counts = under(running, queue)
  if not counts[limit_key] then
    local key = sound(slot_key(queue), 'zset')
    counts[limit_key] = call('ZLEXCOUNT', key, '[' .. limit_key .. '\0', '(' .. limit_key .. '\1')
  end
  return counts[limit_key]
end

local function move_running(queue, limit_key, by)
  local counts = under(running, queue)
  if counts[limit_key] then
    counts[limit_key] = counts[limit_key] + by
  end
end

local function take_slot(id, queue, limit_key)
  enlist(slot_key(queue), 0, limit_key .. '\0' .. id)
  move_running(queue, limit_key, 1)
end

local function leave_slot(id, queue, limit_key)
  delist(slot_key(queue), limit_key .. '\0' .. id)
  move_running(queue, limit_key, -1)
end

local function aside_key(queue, key)
  return P .. 'aside:' .. queue .. '\0' .. key
end

local function set_aside(id, m)
  m[HOLD] = HELD_LIMIT
  enlist(aside_key(m[QUEUE], m[TERMS][LIMIT_KEY]), m[SEQ], id)
  enlist(P .. 'asides:' .. m[QUEUE], 0, m[TERMS][LIMIT_KEY])
  with_asides[m[QUEUE]] = true
end

local function leave_aside(id, m)
  local queue, limit_key = m[QUEUE], m[TERMS][LIMIT_KEY]
  local key = aside_key(queue, limit_key)
  delist(key, id)
  if not first_in(key) then
    delist(P .. 'asides:' .. queue, limit_key)
  end
end

-- Whether anybody of a queue was set aside.
local function has_asides(queue)
  if with_asides[queue] == nil then
    with_asides[queue] = call('EXISTS', P .. 'asides:' .. queue) == 1
  end
  return with_asides[queue]
end

-- The first that was set aside is free to be leased. False if there is none.
local function let_next(queue, limit_key)
  if not has_asides(queue) then
    return false
  end
  local key = aside_key(queue, limit_key)
  while true do
    local id = first_in(key)
    if not id then
      return false
    end
    delist(key, id)
    if not first_in(key) then
      delist(P .. 'asides:' .. queue, limit_key)
    end
    local m = take(id)
    if m and m[STATE] == 'ready' and m[HOLD] == HELD_LIMIT then
      m[HOLD] = 0
      return true
    end
  end
end

-- --- ends ---

local over, vacated = {}, {}

-- Its state says how. `passed`: dead, but its line goes on without a gap.
local function ended(id, m, passed)
  over[#over + 1] = {id, m, passed}
end

-- What was leased, or could have been, makes room under its limit key.
local function vacate(m)
  vacated[#vacated + 1] = m
end

-- A ready item ends without having been leased.
local function end_ready(id, m, state, time, passed)
  if m[HOLD] == HELD_LIMIT then
    leave_aside(id, m)
  end
  m[STATE], m[ENDED_AT], m[HOLD], m[TIES] = state, time, 0, band(m[TIES], bit.bnot(PARKED_ITEM))
  ended(id, m, passed)
end

-- core.terms has it, and a test compares them.
local DEPENDENCY_FAILURE = '{"type":"redrive.DependencyFailed","text":"an item that it waits for is dead or was cancelled",' ..
  '"category":"dependency","rule":"after","cause":"dependency","action":"dead","code":null,"frames":[]}'

local function die_of_dependency(id, m, time)
  end_ready(id, m, 'dead', time)
  m[LETTER] = {'dependency', time, 'open', 'dependency', 'DependencyFailed', 'dependency', ''}
  set(P .. 'failure', id, DEPENDENCY_FAILURE)
end

-- Whoever is to die with one that it waits for, and those that wait for them: a list that grows while it is read.
local function spread_deaths(time)
  local at = 1
  while over[at] do
    local id, m = over[at][1], over[at][2]
    if m[STATE] ~= 'done' and tied(m, AWAITED) then
      for _, waiting in ipairs(all_in(P .. 'awaited:' .. id)) do
        local its = take(waiting)
        if its and its[STATE] == 'ready' and its[TERMS][ON_DEAD] == 'die' then
          die_of_dependency(waiting, its, time)
        end
      end
    end
    at = at + 1
  end
end

local order_of = {}
local function dead_order(queue)
  if not order_of[queue] then
    local declared = list_of(call('HGET', sound(P .. 'queues', 'hash'), queue))
    local limits = kin.limits(queue, declared and declared[4])
    order_of[queue] = limits and limits[6] or 'block'
  end
  return order_of[queue]
end

-- Those that ended leave their lines; gives the heads among them.
local function leave_lines()
  local heads = {}
  for _, one in ipairs(over) do
    local id, m = one[1], one[2]
    if tied(m, ORDERED) then
      local line = line_of_item(m)
      if line.head == id then
        heads[#heads + 1] = {id, m, line, one[3]}
      else
        delist(line.followers, id)
      end
    end
  end
  return heads
end

local function move_on(heads)
  local new_heads = {}
  for _, one in ipairs(heads) do
    local id, m, line = one[1], one[2], one[3]
    local mode = m[STATE] == 'dead' and not one[4] and dead_order(m[QUEUE]) or 'go'
    if mode == 'block' then
      line.status = BLOCKED
    elseif mode == 'park' then
      line.status = PARKED
    else
      if mode == 'skip' then
        line.gap = id
      end
      new_heads[#new_heads + 1] = advance(line, m[TERMS][PLACE])
    end
  end
  return new_heads
end

-- Those that waited for nothing else are free.
local function fulfil(id, freed)
  local key = P .. 'awaited:' .. id
  for _, waiting in ipairs(all_in(key)) do
    local its_key = P .. 'waits:' .. waiting
    delist(key, waiting)
    delist(its_key, id)
    if count_in(its_key) == 0 then
      freed[#freed + 1] = waiting
    end
  end
end

local function fulfil_all()
  local freed = {}
  for _, one in ipairs(over) do
    if one[2][STATE] == 'done' and tied(one[2], AWAITED) then
      fulfil(one[1], freed)
    end
  end
  local records = #freed > 0 and fetch(sound(ITEM, 'hash'), freed) or {}
  for index, id in ipairs(freed) do
    local m = touched[id] or unpacked(records[index])
    if m and m[STATE] == 'ready' then
      hold_again(id, touched[id] or adopt(id, m))
    end
  end
end

-- Of all that ended: others may have their keys.
local function release_keys(time)
  local fields = {}
  for _, one in ipairs(over) do
    local field = tied(one[2], DEDUPED) and field_of(one[2][QUEUE], one[2][TERMS])
    if field and claims[field] == nil then
      fields[#fields + 1] = field
    end
  end
  for index, kept in ipairs(#fields > 0 and fetch(sound(P .. 'dedupe', 'hash'), fields) or {}) do
    read_claim(fields[index], kept)
  end
  for _, one in ipairs(over) do
    if tied(one[2], DEDUPED) then
      release_key(one[1], one[2], time)
    end
  end
end

local function conclude(time)
  spread_deaths(time)
  foresee_lines(over)
  release_keys(time)
  for _, one in ipairs(over) do
    local id, m = one[1], one[2]
    if tied(m, WAITS) and m[STATE] ~= 'done' then
      give_up(id)
    end
  end
  local new_heads = move_on(leave_lines())
  fulfil_all()
  for _, id in ipairs(new_heads) do
    hold_again(id, touched[id])
  end
  for _, m in ipairs(vacated) do
    let_next(m[QUEUE], m[TERMS][LIMIT_KEY])
  end
  over, vacated = {}, {}
end
