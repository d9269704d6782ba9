-- What every script begins with: the time, the record of an item, and the one way from a change to all that follows it.
-- Inputs:    KEYS[1] the prefix of all keys, ARGV[1] the time in ms where a test pins it, else empty
-- Outputs:   none; functions for the scripts behind it
-- Atomicity: nothing here writes but `write`. All else reads and notes down; whatever may fail fails before `write`.

-- Keys, all behind the prefix {namespace}: and so in one slot. A member is the number of the item in 16 digits, then its id.
--   item              hash  id -> its record, a msgpack list (below)
--   body              hash  id -> how it is packed (1 byte), CRC-32 (4 bytes), the payload; no script looks into it
--   result, failure   hash  id -> what the handler returned; why a letter died
--   deeds             hash  id -> what people did with it
--   recall            hash  id -> the letter that a replayed item was (recall.lua)
--   attempts:<id>     list  the evidence of its deliveries
--   revisions:<id>    list  its payloads before each edit: number, time, actor and reason as msgpack behind their length in 8
--                           digits, then the payload as `body` had it
--   items             zset  number -> id
--   ready:<n>:<queue> zset  due -> member, of items of level n (core.lanes) without a kind; ready:<n> NUL <kind> NUL <queue>
--                           of those with one; levels:<queue> is the set of all <n> and <n> NUL <kind> but 0
--   held:<queue>      zset  number -> id, of the ready that have a hold; parks:<queue> of those that an operator parked
--   leased:<queue>    zset  end of the lease -> member
--   ended:<state>:<queue>   zset  number -> id, of the done and the cancelled
--   letters…          zset  time of death -> member: all, and by disposition with queue; with cause, error and category,
--                           each alone and with the queue; and with the route, and the replay they are reserved for,
--                           if they have one
--   causes            zset  open letters -> cause NUL queue
--   routes            zset  open letters -> route; rooms is the hash route -> for how many it has room
--   changes           zset  number of the last change -> id, of items that are or were letters, also when they were pruned
--   queues            hash  queue -> paused, by whom, why, what limits it (limits.lua), its settings as JSON
--   nonce, alone      hash  worker, and lane if not 0 -> its last request and what it got; worker -> the lease it holds alone
--   families          hash  family NUL counter -> the sum over its members (parked among held); family NUL turn -> the last
--   turns:<family>    zset  turn -> member that a lease shall look at now; later:<family>: time -> member to look at then
--   running:<family>  zset  how many run -> member
--   behind:<gate>     set   the queues and families whose settings name this gate
--   tombstones, documents:<kind>, journal:<topic>, workers, elections, sequence, boot
-- What binds items to others stands in lines.lua and ties.lua, their tags in tags.lua.
-- What is counted is how many there are in a set, so no counter can drift.

local P = KEYS[1]
local call = redis.call
local ITEM = P .. 'item'

-- Where what stands in the record of an item. What is absent is false: a nil would end the list.
local SEQ, QUEUE, STATE, ENQUEUED_AT, DUE_AT, RENEWED_AT, DELIVERIES, ATTEMPT, ERRORS, CRASHES = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local REPLAYS, LAST_CHANCE, ALONE, WORKER, LEASED_AT, LEASE_UNTIL, ENDED_AT, OMITTED, LETTER = 11, 12, 13, 14, 15, 16, 17, 18, 19
local FIELDS = 19
-- Most records end here. Those of items that have a priority, a hold or a tie go on.
local PRIORITY, HOLD, TIES, TERMS = 20, 21, 22, 23
local MORE_FIELDS = 23
-- And those of items that have a kind or a release go on beyond that; each is a text, empty for none.
local KIND, RELEASE = 24, 25
local ALL_FIELDS = 25
-- What TIES is the sum of, what HOLD is, and where what stands in TERMS (core.terms). A text that is absent is empty.
local ORDERED, DEDUPED, WAITS, AWAITED, LIMITED, CANCEL, TAGGED, PARKED_ITEM = 1, 2, 4, 8, 16, 32, 128, 256
local HELD_AFTER, HELD_ORDER, HELD_LIMIT, HELD_PARKED = 1, 2, 3, 4
local ORDER_KEY, PLACE, GAP, LIMIT_KEY, SCOPE, DEDUPE_KEY, WINDOW, AFTER, ON_DEAD, POLICY, CANCELLED_BY = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local TAGS = 12
-- Schema, trace, headers and revision, where it has any of them or was ever parked; then it has a list of tags, empty or not.
local DESCRIBED = 13
local REVISION = 4
-- The label under which it was parked last.
local PARK_LABEL = 14
-- And of its letter.
local REASON, DIED_AT, DISPOSITION, CAUSE, ERROR_SHORT, CATEGORY, ROUTE = 1, 2, 3, 4, 5, 6, 7
-- The replay that it is reserved for; most letters end before it.
local RESERVED = 8

-- Arguments of one command: Lua's stack has an end. Even, for pairs.
local MOST = 1000

local function now()
  if ARGV[1] ~= '' then
    return tonumber(ARGV[1])
  end
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Stops the script. Only before `write`. To the server a text ends with a NUL, and some keys have one.
local function refuse(text)
  error({err = 'REDRIVE ' .. string.gsub(text, '%z', ' / ')})
end

-- A key that somebody else made something of is told before the first write: afterwards nothing could be taken back.
local kinds = {}
local function sound(key, kind)
  if kinds[key] then
    return key
  end
  local found = call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then
    refuse('CORRUPT the key ' .. key .. ' is a ' .. found .. ', not a ' .. kind)
  end
  kinds[key] = true
  return key
end

-- --- what is to be written ---

-- Lists of arguments by key.
local removed_members, added_members, removed_fields, set_fields, pushed = {}, {}, {}, {}, {}
local dropped = {}
local emptied, filled, recounted, woken = {}, {}, {}, {}
local routed = {}

local function new_list(lists, key, kind)
  local list = {}
  lists[sound(key, kind)] = list
  return list
end

local function remove(key, member)
  local list = removed_members[key] or new_list(removed_members, key, 'zset')
  list[#list + 1] = member
end

local function add_as(key, text, member)
  local list = added_members[key] or new_list(added_members, key, 'zset')
  local size = #list
  list[size + 1], list[size + 2] = text, member
end

-- A batch often has one time for all: to write a number as text costs more than the rest of this.
local last_score, last_text
local function add(key, score, member)
  if score ~= last_score then
    last_score, last_text = score, string.format('%.0f', score)
  end
  add_as(key, last_text, member)
end

local function unset(key, field)
  local list = removed_fields[key] or new_list(removed_fields, key, 'hash')
  list[#list + 1] = field
end

local function set(key, field, value)
  local list = set_fields[key] or new_list(set_fields, key, 'hash')
  local size = #list
  list[size + 1], list[size + 2] = field, value
end

local function push(key, value)
  local list = pushed[key] or new_list(pushed, key, 'list')
  list[#list + 1] = value
end

-- A key of this kind, with all that is in it.
local function delete(key, kind)
  dropped[sound(key, kind)] = true
end

local function wake(queue)
  woken[queue] = true
end

-- What is known of families: see below.
local kin = {known = {}, grouped = {}}

-- Ids of letters that this script makes, changes or ends, in order and each once: they get the next change numbers.
local changed_letters = {}
local function change_letter(id)
  if not changed_letters[id] then
    changed_letters[id], changed_letters[#changed_letters + 1] = true, id
  end
end

-- Functions that note down, at last, what was gathered until then.
local before_write = {}

-- All that was noted down. May be called again for what is noted afterwards.
local write
-- What only it uses: a script has at most 200 local variables.
do
  -- `sign`: what a change of the size of a set means for the counters of a family.
  local function send(command, lists, sign)
    for key, list in pairs(lists) do
      local size, moved = #list, 0
      if size <= MOST then
        moved = call(command, key, unpack(list))
      else
        for first = 1, size, MOST do
          moved = moved + call(command, key, unpack(list, first, math.min(first + MOST - 1, size)))
        end
      end
      if sign and kin.grouped[key] then
        kin.count(kin.grouped[key], sign * moved)
      end
      lists[key] = nil
    end
  end

  -- How many open letters a cause has in a queue is how many lie in its set.
  local function recount()
    for member in pairs(recounted) do
      local count = call('ZCARD', P .. 'letters:cq:open:' .. member)
      if count == 0 then
        call('ZREM', P .. 'causes', member)
      else
        call('ZADD', P .. 'causes', count, member)
      end
      recounted[member] = nil
    end
  end

  -- The same of routes.
  local function recount_routes()
    for route in pairs(routed) do
      local count = call('ZCARD', P .. 'letters:r:open:' .. route)
      if count == 0 then
        call('ZREM', P .. 'routes', route)
      else
        call('ZADD', P .. 'routes', count, route)
      end
      routed[route] = nil
    end
  end

  local function number_changes()
    local last = tonumber(call('HGET', sound(P .. 'sequence', 'hash'), 'change') or 0)
    if not last then
      refuse('CORRUPT the number of the last change is none')
    end
    for index, id in ipairs(changed_letters) do
      add(P .. 'changes', last + index, id)
    end
    set(P .. 'sequence', 'change', string.format('%.0f', last + #changed_letters))
    changed_letters = {}
  end

  function write()
    for _, conclude in ipairs(before_write) do
      conclude()
    end
    if #changed_letters > 0 then
      number_changes()
    end
    send('ZREM', removed_members, -1)
    send('HDEL', removed_fields)
    send('ZADD', added_members, 1)
    send('HSET', set_fields)
    send('RPUSH', pushed)
    for key in pairs(dropped) do
      call('DEL', key)
      dropped[key] = nil
    end
    for key, level in pairs(emptied) do
      if call('EXISTS', key) == 0 then
        call('SREM', level[1], level[2])
      end
      emptied[key] = nil
    end
    for _, level in pairs(filled) do
      call('SADD', level[1], level[2])
    end
    filled = {}
    recount()
    recount_routes()
    local queues = {}
    for queue in pairs(woken) do
      queues[#queues + 1] = queue
      woken[queue] = nil
      kin.lower(queue)
    end
    if #queues > 0 then
      -- A hint: whoever may not publish, or is not heard, is made up for by polling.
      redis.pcall('PUBLISH', P .. 'wake', table.concat(queues, '\0'))
    end
  end
end

-- --- items ---

local packed = cmsgpack.pack

-- The same from values, and back to values: `pcall(values_of, kept, FIELDS, HEAD_SIZE)` gives true, -1 and the fields.
-- Without a table in between both cost a third.
local HEAD = '\220\0\019'
local HEAD_SIZE = 3
local values_of = cmsgpack.unpack_limit

-- A list as it was packed; nil for none and for one that is damaged.
local function list_of(kept)
  if not kept then
    return nil
  end
  local read, list = pcall(cmsgpack.unpack, kept)
  return read and type(list) == 'table' and list or nil
end

-- --- families (core.families) ---

-- The declared family of a queue and its settings; nil for one that has none.
function kin.of(queue)
  local at = string.find(queue, ':', 1, true)
  if not at or at == 1 or string.sub(queue, at) == ':*' then
    return nil
  end
  local family = string.sub(queue, 1, at) .. '*'
  if kin.known[family] == nil then
    local kept = call('HGET', sound(P .. 'queues', 'hash'), family)
    kin.known[family] = kept and (list_of(kept) or {}) or false
    if kept then
      sound(P .. 'families', 'hash')
      for _, kind in ipairs({'turns:', 'later:', 'running:'}) do
        sound(P .. kind .. family, 'zset')
      end
    end
  end
  if not kin.known[family] then
    return nil
  end
  return family, kin.known[family]
end

-- What lies under this key of a member is counted so for its family.
function kin.group(key, queue, kind)
  local family = kin.of(queue)
  if family then
    kin.grouped[key] = {family, kind, queue}
  end
end

function kin.count(group, by)
  if by == 0 then
    return
  end
  local family, kind, queue = group[1], group[2], group[3]
  call('HINCRBY', P .. 'families', family .. '\0' .. kind, by)
  if kind == 'leased' and tonumber(call('ZINCRBY', P .. 'running:' .. family, by, queue)) <= 0 then
    call('ZREM', P .. 'running:' .. family, queue)
  end
end

function kin.counted(family, kind)
  return tonumber(call('HGET', P .. 'families', family .. '\0' .. kind) or 0) or 0
end

-- Leases of its family shall look at a member. One that waits for its turn keeps its place.
function kin.lower(queue)
  local family = kin.of(queue)
  if family and not call('ZSCORE', P .. 'turns:' .. family, queue) then
    call('ZADD', P .. 'turns:' .. family, call('HINCRBY', P .. 'families', family .. '\0turn', 1), queue)
    call('ZREM', P .. 'later:' .. family, queue)
  end
end

function kin.lower_all(family)
  for _, queue in ipairs(call('ZRANGE', P .. 'later:' .. family, 0, -1)) do
    kin.lower(queue)
  end
end

-- Of `most`, how many all members of a family together have room for.
function kin.room(family, settings, most)
  if settings[1] then
    return 0
  end
  local limits = settings[4]
  return limits and limits[1] and math.max(0, math.min(most, limits[1] - kin.counted(family, 'leased'))) or most
end

-- The limits that hold for a queue (limits.lua): its own, and those of its family where it has none.
function kin.limits(queue, own)
  local _, settings = kin.of(queue)
  local whole = settings and settings[4]
  if not whole then
    return own
  end
  own = own or {false, false, false, 0, false, false, ''}
  local gate = whole[7] == '*' and queue or whole[7]
  return {
    own[1], own[2] or whole[2], own[3] or whole[3], own[3] and own[4] or whole[4], own[5],
    own[6] or whole[6], own[7] ~= '' and own[7] or gate,
  }
end

-- The record of an item, likewise.
local function unpacked(kept)
  local m = list_of(kept)
  return m and (#m == FIELDS or #m == MORE_FIELDS or #m == ALL_FIELDS) and m or nil
end

local function load(id)
  return unpacked(call('HGET', P .. 'item', id))
end

-- The fields of a hash, as many as there are.
local function fetch(key, ids)
  local found = {}
  for first = 1, #ids, MOST do
    local part = call('HMGET', key, unpack(ids, first, math.min(first + MOST - 1, #ids)))
    if first == 1 and #ids <= MOST then
      return part
    end
    for index = 1, #part do
      found[first + index - 1] = part[index]
    end
  end
  return found
end

-- Its member in sets that are ordered by a time: equal times are in the order of put. It is asked for in pairs.
local last_id, last_place
local function place(m, id)
  if id ~= last_id then
    last_id, last_place = id, string.format('%016d', m[SEQ]) .. id
  end
  return last_place
end

local function id_at(member)
  return string.sub(member, 17)
end

local function remove_share(key, _, member)
  remove(key, member)
end

local function under(tree, name)
  local found = tree[name]
  if not found then
    found = {}
    tree[name] = found
  end
  return found
end

-- The sets that a letter is in. Many letters are in the same ones, and an act may be about ten thousand of them.
kin.letters = {}
local function letter_keys(queue, letter)
  local lies, cause, error_short, category = letter[DISPOSITION], letter[CAUSE], letter[ERROR_SHORT], letter[CATEGORY]
  local route, reserved = letter[ROUTE], letter[RESERVED] or ''
  local keys = under(under(under(under(under(under(kin.letters, lies), queue), cause), error_short), category), route)
  keys = under(keys, reserved)
  if not keys[1] then
    keys[1] = P .. 'letters'
    keys[2] = P .. 'letters:' .. lies
    keys[3] = P .. 'letters:q:' .. lies .. ':' .. queue
    kin.group(keys[3], queue, lies)
    keys[4] = P .. 'letters:c:' .. lies .. ':' .. cause
    keys[5] = P .. 'letters:cq:' .. lies .. ':' .. cause .. '\0' .. queue
    keys[6] = P .. 'letters:e:' .. lies .. ':' .. error_short
    keys[7] = P .. 'letters:k:' .. lies .. ':' .. category
    keys[8] = P .. 'letters:eq:' .. lies .. ':' .. error_short .. '\0' .. queue
    keys[9] = P .. 'letters:kq:' .. lies .. ':' .. category .. '\0' .. queue
    if route ~= '' then
      keys[10] = P .. 'letters:r:' .. lies .. ':' .. route
    end
    if reserved ~= '' then
      keys[#keys + 1] = P .. 'letters:v:' .. lies .. ':' .. reserved
    end
  end
  return keys
end

-- Keys are made once: in a batch, making them would take longer than all else.
kin.ready_at, kin.held_at, kin.leased_at, kin.ended_at = {}, {}, {}, {}

-- A rank is a level, or a level and a kind with a NUL between.
local function ready_key(queue, rank)
  local keys = under(kin.ready_at, queue)
  if not keys[rank] then
    keys[rank] = P .. 'ready:' .. rank .. (string.find(rank, '\0', 1, true) and '\0' or ':') .. queue
    kin.group(keys[rank], queue, 'ready')
  end
  return keys[rank]
end

-- As core.lanes says: crashes first, then whether it was tried before, then its priority; and its kind.
local function rank_of(m)
  local level, kind = m[PRIORITY] or 0, m[KIND]
  if m[CRASHES] > 0 or m[ERRORS] > 0 or m[REPLAYS] > 0 then
    level = m[CRASHES] * 6 + 3 + level
  end
  return kind and kind ~= '' and level .. '\0' .. kind or level
end

local function held_key(queue)
  if not kin.held_at[queue] then
    kin.held_at[queue] = P .. 'held:' .. queue
    kin.group(kin.held_at[queue], queue, 'held')
  end
  return kin.held_at[queue]
end

local function leased_key(queue)
  if not kin.leased_at[queue] then
    kin.leased_at[queue] = P .. 'leased:' .. queue
    kin.group(kin.leased_at[queue], queue, 'leased')
  end
  return kin.leased_at[queue]
end

local function ended_key(queue, state)
  local keys = under(kin.ended_at, state)
  if not keys[queue] then
    keys[queue] = P .. 'ended:' .. state .. ':' .. queue
    kin.group(keys[queue], queue, state)
  end
  return keys[queue]
end

-- Calls `note(key, score, member)` for each set an item is in besides `items`.
local function shares(id, m, note)
  local state, queue = m[STATE], m[QUEUE]
  if state == 'ready' and (m[HOLD] or 0) > 0 then
    note(held_key(queue), m[SEQ], id)
    if m[HOLD] == HELD_PARKED then
      note(P .. 'parks:' .. queue, m[SEQ], id)
    end
  elseif state == 'ready' then
    local rank = rank_of(m)
    local key = ready_key(queue, rank)
    note(key, m[DUE_AT], place(m, id))
    if rank ~= 0 then
      local listed = {sound(P .. 'levels:' .. queue, 'set'), rank}
      if note == remove_share then
        emptied[key] = listed
      else
        filled[key] = listed
      end
    end
  elseif state == 'leased' then
    note(leased_key(queue), m[LEASE_UNTIL], place(m, id))
  elseif m[LETTER] then
    local letter = m[LETTER]
    local died, lies, cause, member = letter[DIED_AT], letter[DISPOSITION], letter[CAUSE], place(m, id)
    for _, key in ipairs(letter_keys(queue, letter)) do
      note(key, died, member)
    end
    if lies == 'open' then
      sound(P .. 'causes', 'zset')
      recounted[cause .. '\0' .. queue] = true
      local route = letter[ROUTE]
      if route ~= '' then
        sound(P .. 'routes', 'zset')
        routed[route] = true
      end
    end
  else
    note(ended_key(queue, state), m[SEQ], id)
  end
end

-- A change is: lift, change the record, lay. Between them nothing else may note down this item.
local function lift(id, m)
  shares(id, m, remove_share)
  if m[LETTER] then
    change_letter(id)
  end
end

local function lay(id, m)
  shares(id, m, add)
  local kept = packed(m)
  set(ITEM, id, kept)
  if m[STATE] == 'ready' and (m[HOLD] or 0) == 0 then
    wake(m[QUEUE])
  elseif m[LETTER] then
    change_letter(id)
  end
  return kept
end

-- An item that several things in one script may change: it is lifted once, changed by all of them, and laid at last.
local touched, touches = {}, {}

local function touch(id, m)
  touched[id] = m
  touches[#touches + 1] = id
  return m
end

local function adopt(id, m)
  lift(id, m)
  return touch(id, m)
end

-- Nil for one that is not there or cannot be read.
local function take(id)
  local m = touched[id]
  if m then
    return m
  end
  m = load(id)
  return m and adopt(id, m)
end

before_write[#before_write + 1] = function()
  for _, id in ipairs(touches) do
    lay(id, touched[id])
    touched[id] = nil
  end
  touches = {}
end

local band, bor = bit.band, bit.bor
local function tied(m, tie)
  return band(m[TIES] or 0, tie) ~= 0
end

-- With the fields that most records do without.
local function widened(m)
  if m[TIES] == nil then
    m[PRIORITY], m[HOLD], m[TIES], m[TERMS] = 0, 0, 0, false
  end
  return m
end
