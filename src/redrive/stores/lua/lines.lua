-- Items of one order key in their line: the head alone can be leased, the followers wait for their turn.
-- Inputs:    line_of(queue, key); foresee_lines({{id, record}, …}); join(id, record, place); rejoin(id, record);
--            advance(line, place of its head); promote(id, record as it is kept)
-- Outputs:   the line, with last place, head ('' for none), status and gap ('' for none); whether it was promoted
-- Atomicity: reads and notes down; the script writes.
-- Keys:      lines:<queue> hash, order key -> last place, head, status, gap; followers:<queue> NUL <key> zset, place -> id;
--            parked:<queue> zset, 0 -> order key of a parked line

local FLOWING, BLOCKED, PARKED = 0, 1, 2

local lines = {}

local function read_line(queue, key, kept)
  local name = queue .. '\0' .. key
  local list = list_of(kept)
  if kept and (not list or #list ~= 4) then
    refuse('CORRUPT the line of the order key ' .. key .. ' in ' .. queue .. ' cannot be read')
  end
  list = list or {0, '', FLOWING, ''}
  local line = {
    queue = queue, key = key, followers = P .. 'followers:' .. name, kept = kept or '',
    last = list[1], head = list[2], status = list[3], gap = list[4], was = list[3],
  }
  lines[name] = line
  return line
end

local function line_of(queue, key)
  local line = lines[queue .. '\0' .. key]
  return line or read_line(queue, key, call('HGET', sound(P .. 'lines:' .. queue, 'hash'), key))
end

-- Reads the lines of many items at once.
local function foresee_lines(items)
  local keys = {}
  for _, one in ipairs(items) do
    local m = one[2]
    if tied(m, ORDERED) and not lines[m[QUEUE] .. '\0' .. m[TERMS][ORDER_KEY]] then
      local list = under(keys, m[QUEUE])
      list[#list + 1] = m[TERMS][ORDER_KEY]
    end
  end
  for queue, list in pairs(keys) do
    for index, kept in ipairs(fetch(sound(P .. 'lines:' .. queue, 'hash'), list)) do
      if not lines[queue .. '\0' .. list[index]] then
        read_line(queue, list[index], kept)
      end
    end
  end
end

local function line_of_item(m)
  return line_of(m[QUEUE], m[TERMS][ORDER_KEY])
end

local function lead(line, id, m)
  line.head = id
  if line.gap ~= '' then
    m[TERMS][GAP] = line.gap
  end
end

-- At the tail; the first of a line is its head. Places are numbers of the sequence of items: a line is forgotten when it is
-- empty, and the place of a letter is not.
local function join(id, m, place)
  local line = line_of_item(m)
  m[TERMS][PLACE] = place
  line.last = math.max(line.last, place)
  if line.head == '' then
    lead(line, id, m)
  else
    enlist(line.followers, place, id)
  end
end

-- At the place that it had. Then somebody may stand behind a head with a greater place.
local function rejoin(id, m)
  local line = line_of_item(m)
  if line.head == '' then
    lead(line, id, m)
  else
    enlist(line.followers, m[TERMS][PLACE], id)
  end
  line.last = math.max(line.last, m[TERMS][PLACE]) + 1
end

-- The head goes, which stood at `place`, if that is known. Gives the new one, if there is one. Whoever came after it has a
-- later place, so that nobody is looked for behind the last; who came back made `last` greater than all places.
local function advance(line, place)
  line.status, line.head = FLOWING, ''
  while not place or place < line.last do
    local id = first_in(line.followers)
    if not id then
      return nil
    end
    delist(line.followers, id)
    local m = take(id)
    -- What is no item, or not ready, would stop all behind it.
    if m and m[STATE] == 'ready' then
      lead(line, id, m)
      return id, m
    end
  end
  return nil
end

-- A follower that waited for its turn and nothing else, and was never tried: nearly all are so. Its record stays as it is but
-- for the hold, which is one byte. The same as take, a hold of 0, and lay; afterwards nobody may take it in this script.
local function promote(id, kept)
  local read, at, seq, queue, state, _, due_at, _, _, _, errors, crashes, replays, _, _, _, _, _, _, _, _, priority = pcall(
    values_of, kept or '', HOLD - 1, HEAD_SIZE
  )
  if not read or state ~= 'ready' or not priority or priority + errors + crashes + replays > 0 then
    return false
  end
  local left, hold, ties = values_of(kept, 2, at)
  if left < 0 or hold ~= HELD_ORDER or band(ties, WAITS) ~= 0 then
    return false
  end
  if string.byte(kept, HEAD_SIZE) == ALL_FIELDS then
    local _, _, kind = values_of(kept, 2, left)
    if kind ~= '' then
      return false
    end
  end
  remove(held_key(queue), id)
  add(ready_key(queue, 0), due_at, string.format('%016d', seq) .. id)
  set(ITEM, id, string.sub(kept, 1, at) .. '\0' .. string.sub(kept, at + 2))
  wake(queue)
  return true
end

before_write[#before_write + 1] = function()
  for _, line in pairs(lines) do
    local key = P .. 'lines:' .. line.queue
    local list = cmsgpack.pack({line.last, line.head, line.status, line.gap})
    if line.head == '' and line.gap == '' then
      if line.kept ~= '' then
        unset(key, line.key)
      end
    elseif list ~= line.kept then
      set(key, line.key, list)
    end
    if line.status ~= line.was then
      local parked = P .. 'parked:' .. line.queue
      if line.status == PARKED then
        add(parked, 0, line.key)
      elseif line.was == PARKED then
        remove(parked, line.key)
      end
    end
  end
  lines = {}
end
