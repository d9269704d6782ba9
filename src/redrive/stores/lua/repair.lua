#!lua flags=allow-oom
-- repair: makes what is kept beside the items follow from them again. No item is moved but from one hold to another.
-- Inputs:    the step: "sets", then "lines", then "holds", each for all before the next begins: a line is made of those who
--            stand in it, and a hold is what a line says. Lists, each after its length: ids of items that are not where they
--            would be looked for; index and member in turn of entries that no item has; queues that are not declared; causes
--            and queues joined by NUL; routes; hash and field in turn of lines and dedupe keys that do not fit, or `aside`,
--            queue and limit key
-- Outputs:   none
-- Atomicity: a step is one script, which looks again at each: what has been put right meanwhile, or has gone, stays as it is
-- Uses: tags ledger lines ties truth

local step, at = ARGV[2], 3
local function next_list()
  local list = {}
  for index = 1, tonumber(ARGV[at]) do
    list[index] = ARGV[at + index]
  end
  at = at + #list + 1
  return list
end

local misplaced_ids, strays, undeclared = next_list(), next_list(), next_list()
local causes, routes, unfit = next_list(), next_list(), next_list()

-- --- sets ---

-- The last number given is at least the highest that is there.
local function count_on(index, name)
  local highest = tonumber(call('ZREVRANGE', sound(P .. index, 'zset'), 0, 0, 'WITHSCORES')[2] or 0)
  local last = tonumber(call('HGET', sound(P .. 'sequence', 'hash'), name) or 0)
  if not last or last < highest then
    set(P .. 'sequence', name, string.format('%.0f', highest))
  end
end

local function find_places()
  for _, id in ipairs(misplaced_ids) do
    local m = load(id)
    if m and misplaced({[id] = m})[id] ~= IMPOSSIBLE then
      add(P .. 'items', m[SEQ], id)
      places(id, m, add)
      if m[HOLD] == HELD_LIMIT then
        add(P .. 'asides:' .. m[QUEUE], 0, m[TERMS][LIMIT_KEY])
      end
      if m[STATE] == 'ready' then
        wake(m[QUEUE])
      elseif m[LETTER] and not call('ZSCORE', sound(P .. 'changes', 'zset'), id) then
        change_letter(id)
      end
    end
  end
end

local function remove_strays()
  for index = 1, #strays, 2 do
    local name, member = strays[index], strays[index + 1]
    local key = sound(P .. name, 'zset')
    local score = tonumber(call('ZSCORE', key, member) or '')
    -- In some indexes the number of the item stands before its id.
    local is_its = score and (is_mine(member, key, score, member) or is_mine(id_at(member), key, score, member))
    if score and not is_its and not is_reasonable(name, score, member) then
      remove(key, member)
    end
  end
end

local function count_again()
  for _, queue in ipairs(undeclared) do
    if call('HEXISTS', sound(P .. 'queues', 'hash'), queue) == 0 then
      set(P .. 'queues', queue, cmsgpack.pack({false, '', ''}))
    end
  end
  sound(P .. 'causes', 'zset')
  for _, cause in ipairs(causes) do
    sound(P .. 'letters:cq:open:' .. cause, 'zset')
    recounted[cause] = true
  end
  sound(P .. 'routes', 'zset')
  for _, route in ipairs(routes) do
    sound(P .. 'letters:r:open:' .. route, 'zset')
    routed[route] = true
  end
  count_on('items', 'item')
end

-- --- lines ---

-- By queue and order key: who runs. Of those that run there are few; in a line there may be many.
local runners = {}
local function runner_of(queue, key)
  if not runners[queue] then
    runners[queue] = {}
    for _, member in ipairs(call('ZRANGE', sound(leased_key(queue), 'zset'), 0, -1)) do
      local id = id_at(member)
      local m = load(id)
      if m and m[STATE] == 'leased' and tied(m, ORDERED) then
        runners[queue][m[TERMS][ORDER_KEY]] = id
      end
    end
  end
  return runners[queue][key]
end

-- The head steps back, which is ready.
local function step_back(line)
  local id, m = line.head, take(line.head)
  line.head = ''
  if m[HOLD] == HELD_LIMIT then
    leave_aside(id, m)
  end
  if m[HOLD] ~= HELD_AFTER and m[HOLD] ~= HELD_PARKED then
    m[HOLD] = HELD_ORDER
  end
  enlist(line.followers, m[TERMS][PLACE], id)
end

-- Who runs is the head, wherever it stands: nobody else of its line may run beside it.
local function find_head(line)
  local has_one = has_head(line.queue, line.key, {line.last, line.head, line.status, line.gap})
  local is_live = has_head(line.queue, line.key, {line.last, line.head, FLOWING, ''})
  local state = is_live and load(line.head)[STATE]
  local runner = runner_of(line.queue, line.key)
  if runner and state ~= 'leased' and (is_live or not has_one) then
    if is_live then
      step_back(line)
    end
    delist(line.followers, runner)
    line.head, line.status = runner, FLOWING
  elseif is_live then
    line.status = FLOWING
  elseif not has_one then
    local id, m = advance(line)
    if id then
      hold_again(id, m)
    end
  end
end

local function mend_line(queue, key)
  local kept = list_of(call('HGET', P .. 'lines:' .. queue, key))
  if not kept or #kept ~= 4 then
    unset(P .. 'lines:' .. queue, key)
    write()
  end
  local line = line_of(queue, key)
  find_head(line)
  line.last = math.max(line.last, tonumber(call('ZREVRANGE', sound(line.followers, 'zset'), 0, 0, 'WITHSCORES')[2] or 0))
  -- Behind a head at the last place nobody is looked for.
  local head = line.head ~= '' and (touched[line.head] or load(line.head))
  if head and head[TERMS][PLACE] >= line.last then
    line.last = head[TERMS][PLACE] + 1
  end
  -- Whether it is listed as parked follows.
  line.was = line.status == PARKED and FLOWING or PARKED
end

local function mend_dedupe(field)
  local holder = list_of(call('HGET', sound(P .. 'dedupe', 'hash'), field))
  if holder and holder[2] then
    add(P .. 'windows', holder[2], field)
  elseif not holder or not has_holder(field, holder) then
    unset(P .. 'dedupe', field)
  end
end

local function mend_unfit()
  for index = 1, #unfit, 2 do
    local name, field = unfit[index], unfit[index + 1]
    local queue = string.match(name, '^lines:(.*)$')
    if queue then
      mend_line(queue, field)
    elseif name == 'aside' then
      local its_queue, limit_key = string.match(field, '^([^%z]*)%z(.*)$')
      if call('EXISTS', P .. 'aside:' .. field) == 1 then
        add(P .. 'asides:' .. its_queue, 0, limit_key)
      end
    else
      mend_dedupe(field)
    end
  end
  write()
end

-- A line that was lost is made anew of those who stand in it, and one that forgot who runs is told.
local function mend_lost_lines()
  for _, id in ipairs(misplaced_ids) do
    local m = load(id)
    local head = m and tied(m, ORDERED) and line_of_item(m).head
    if head == '' or (head and head ~= id and m[STATE] == 'leased') then
      mend_line(m[QUEUE], m[TERMS][ORDER_KEY])
      write()
    end
  end
end

-- --- holds ---

local function hold_all_again()
  for _, id in ipairs(misplaced_ids) do
    local m = load(id)
    if m and m[TIES] and m[STATE] == 'ready' and m[HOLD] ~= HELD_LIMIT then
      local before = m[HOLD]
      hold_again(id, m)
      if m[HOLD] ~= before then
        local after = m[HOLD]
        m[HOLD] = before
        lift(id, m)
        m[HOLD] = after
        lay(id, m)
      end
    end
  end
end

if step == 'sets' then
  -- First: letters without a change number get the next ones.
  count_on('changes', 'change')
  write()
  find_places()
  remove_strays()
  count_again()
elseif step == 'lines' then
  mend_unfit()
  mend_lost_lines()
else
  hold_all_again()
end
write()
