-- Whether the indexes are what the items say, for the scripts that check and mend.
-- Inputs:    misplaced(records), records by id; belongs(id, record, key, score, member); places(id, record, note)
-- Outputs:   by id, 1 for an item that is not in all its indexes, or not at its place, 2 for a record that cannot be, and the
--            kind of set, such as 'slot', for one that is not in a set that binds it to others or has its tag; whether an entry
--            is its item's
-- Atomicity: reads.

-- The number of an awaited item; that of one that was pruned is known only where it is waited for.
local function number_of(awaited, key)
  local m = load(awaited)
  return m and m[SEQ] or tonumber(call('ZSCORE', key, awaited) or 0), m and m[STATE]
end

local function is_fulfilled(awaited, state)
  if state then
    return state == 'done'
  end
  local kept = call('HGET', P .. 'tombstones', awaited)
  local read, facts = pcall(cjson.decode, kept and string.sub(kept, 17) or '')
  return read and type(facts) == 'table' and facts[2] == 'done'
end

-- The sets that a live item is in because it is bound to others: its line, its limit key, those it waits for.
local function bonds(id, m, note)
  local state, terms, queue = m[STATE], m[TERMS], m[QUEUE]
  if not terms or (state ~= 'ready' and state ~= 'leased') then
    return
  end
  if tied(m, ORDERED) then
    local line = list_of(call('HGET', P .. 'lines:' .. queue, terms[ORDER_KEY])) or {}
    if line[2] ~= id then
      note(P .. 'followers:' .. queue .. '\0' .. terms[ORDER_KEY], terms[PLACE], id)
    end
  end
  if tied(m, LIMITED) and state == 'leased' then
    note(P .. 'slot:' .. queue, 0, terms[LIMIT_KEY] .. '\0' .. id)
  elseif m[HOLD] == HELD_LIMIT then
    note(P .. 'aside:' .. queue .. '\0' .. terms[LIMIT_KEY], m[SEQ], id)
  end
  -- One that was replayed by force waits for nobody, whatever it was to come after.
  local key = P .. 'waits:' .. id
  local is_waiting = m[HOLD] == HELD_AFTER or m[HOLD] == HELD_PARKED and call('EXISTS', key) == 1
  if tied(m, WAITS) and state == 'ready' and is_waiting then
    for _, awaited in ipairs(terms[AFTER]) do
      local number, its_state = number_of(awaited, key)
      if not is_fulfilled(awaited, its_state) then
        note(key, number, awaited)
        note(P .. 'awaited:' .. awaited, m[SEQ], id)
      end
    end
  end
end

local function places(id, m, note)
  shares(id, m, note)
  bonds(id, m, note)
  tag_shares(id, m, note)
end

-- One function for all items, and lists by key: a check looks at every item there is.
local members, wanted, owners, owner = {}, {}, {}, nil
local function collect(key, score, member)
  local list = members[key]
  if not list then
    list = {}
    members[key], wanted[key], owners[key] = list, {}, {}
  end
  local size = #list + 1
  list[size], wanted[key][size], owners[key][size] = member, score, owner
end

local function scores(key, list)
  local found = {}
  if call('TYPE', key).ok == 'zset' then
    for first = 1, #list, MOST do
      local part = call('ZMSCORE', key, unpack(list, first, math.min(first + MOST - 1, #list)))
      for index = 1, #part do
        found[first + index - 1] = tonumber(part[index] or '')
      end
    end
  end
  return found
end

local MISPLACED, IMPOSSIBLE = 1, 2
local BINDING = {followers = true, slot = true, aside = true, waits = true, awaited = true, tag = true, parks = true}

local function misplaced(records)
  local found = {}
  for id, m in pairs(records) do
    owner = id
    -- A record of wrong kinds of values breaks what is made of it.
    if type(m[SEQ]) ~= 'number' or not pcall(places, id, m, collect) then
      found[id] = IMPOSSIBLE
    else
      collect(P .. 'items', m[SEQ], id)
    end
  end
  for key, list in pairs(members) do
    local there = scores(key, list)
    local kind = string.match(key, '^(%a+):', #P + 1)
    for index, id in ipairs(owners[key]) do
      if there[index] ~= wanted[key][index] then
        found[id] = found[id] or BINDING[kind] and kind or MISPLACED
      end
    end
  end
  return found
end

local sought_key, sought_score, sought_member, hit
local function compare(key, score, member)
  hit = hit or (key == sought_key and score == sought_score and member == sought_member)
end

local function belongs(id, m, key, score, member)
  sought_key, sought_score, sought_member, hit = key, score, member, false
  if m then
    compare(P .. 'items', m[SEQ], id)
    pcall(places, id, m, compare)
  end
  return hit
end

-- What is there but cannot be read may be meant by any entry: it stays to be found.
local function is_mine(id, key, score, member)
  local kept = call('HGET', ITEM, id)
  local m = unpacked(kept)
  return kept and (not m or belongs(id, m, key, score, member)) and true or false
end

-- Whether an entry of a set that binds items, or that lists such sets, has a reason to be there.
local function is_reasonable(name, score, member)
  local kind, rest = string.match(name, '^(%a+):?(.*)$')
  if kind == 'asides' then
    return call('EXISTS', P .. 'aside:' .. rest .. '\0' .. member) == 1
  elseif kind == 'parked' then
    local line = list_of(call('HGET', P .. 'lines:' .. rest, member))
    return line and line[3] == PARKED or false
  elseif kind == 'windows' then
    local holder = list_of(call('HGET', P .. 'dedupe', member))
    return holder and holder[2] == score or false
  end
  local owner = kind == 'waits' and rest or kind == 'slot' and string.match(member, '%z(.*)$') or member
  return is_mine(owner, P .. name, score, member)
end

-- Whether a line has a head that lives, or that keeps it back.
local function has_head(queue, key, line)
  local m = line[2] ~= '' and load(line[2])
  if not m then
    return line[2] == '' and line[4] ~= '' and call('EXISTS', P .. 'followers:' .. queue .. '\0' .. key) == 0
  end
  local is_its = m[TERMS] and m[TERMS][ORDER_KEY] == key and m[QUEUE] == queue
  local state = m[STATE]
  return is_its and (line[3] == FLOWING and (state == 'ready' or state == 'leased') or line[3] ~= FLOWING and state == 'dead')
end

-- Whether whoever stands behind the head would be looked for: that is done only before the last place.
local function sees_followers(queue, key, line)
  local m = line[2] ~= '' and load(line[2])
  return not m or m[TERMS][PLACE] < line[1] or call('EXISTS', P .. 'followers:' .. queue .. '\0' .. key) == 0
end

-- Whether a dedupe key is held by an item that lives, or has a window that is listed.
local function has_holder(field, holder)
  if holder[2] then
    return tonumber(call('ZSCORE', P .. 'windows', field) or '') == holder[2]
  end
  local m = load(holder[1])
  return m and (m[STATE] == 'ready' or m[STATE] == 'leased') and tied(m, DEDUPED)
end
