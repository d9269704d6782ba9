#!lua flags=no-writes
-- find: the next candidates of a search in its order, for Python to judge.
-- Inputs:    how many; "last" or "first" (from which end); the place after which to go on, as score and member (both
--            empty to begin); how many characters stand before the id in a member; what to have too, by letters ("b"
--            payloads, up to a size, "f" the evidence of letters, "r" results, "p" who is parked); then groups of indexes, each as its number of keys and the
--            keys without prefix, one with a * in front standing for one key per declared queue. Every group covers
--            what is searched for, and the smallest is read
-- Outputs:   now; 1 if that was all; score and member of the last candidate; then of each what rows.lua gives, with 0
--            for a payload that had no room. There may be fewer than asked for without that being all
-- Atomicity: one read. Places do not shift between two calls: an item's place is part of the item
-- Uses: parking

local many, backwards = tonumber(ARGV[2]), ARGV[3] == 'last'
local score, member = ARGV[4], ARGV[5]
local before_id = tonumber(ARGV[6])
local function is_asked(letter)
  return string.find(ARGV[7], letter, 1, true)
end
local range = backwards and 'ZREVRANGE' or 'ZRANGE'

local function expanded(name)
  if string.sub(name, 1, 1) ~= '*' then
    return {P .. name}
  end
  local keys = call('HKEYS', P .. 'queues')
  for index, queue in ipairs(keys) do
    keys[index] = P .. string.sub(name, 2) .. queue
  end
  return keys
end

local function smallest_group()
  local best, fewest
  local at = 8
  while ARGV[at] do
    local keys, count = {}, 0
    for index = at + 1, at + tonumber(ARGV[at]) do
      for _, key in ipairs(expanded(ARGV[index])) do
        keys[#keys + 1] = key
        count = count + call('ZCARD', key)
      end
    end
    if not fewest or count < fewest then
      best, fewest = keys, count
    end
    at = at + tonumber(ARGV[at]) + 1
  end
  return best
end

-- By its number: Lua would compare texts by the locale of the server.
local function number_of(text)
  return tonumber(string.sub(text, 1, before_id)) or 0
end

-- The rank, seen from the end where we begin, of the first that comes after the place. Those that share its score are
-- in the order of their numbers, and may be a million: halved, not read.
local function rank_after(key)
  if score == '' then
    return 0
  end
  local low = backwards and call('ZCOUNT', key, '(' .. score, '+inf') or call('ZCOUNT', key, '-inf', '(' .. score)
  local high = low + call('ZCOUNT', key, score, score)
  local number = number_of(member)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = number_of(call(range, key, middle, middle)[1])
    if found == number or (found > number) == backwards then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local function comes_first(a, b)
  if backwards then
    a, b = b, a
  end
  return a.score < b.score or (a.score == b.score and a.number < b.number)
end

-- The members, whether there are no more, and the score of the last.
local function candidates_of(key)
  local from = rank_after(key)
  local members = call(range, key, from, from + many, 'WITHSCORES')
  local count, last = #members / 2, members[#members]
  for index = 1, count do
    members[index] = members[2 * index - 1]
  end
  return members, count, count <= many, last
end

-- Of every key a share; then up to where all keys have been read.
local function candidates_of_all(keys)
  local share = math.ceil(many / #keys) + 1
  local found, horizon = {}, nil
  for _, key in ipairs(keys) do
    local from = rank_after(key)
    local part = call(range, key, from, from + share - 1, 'WITHSCORES')
    for index = 1, #part, 2 do
      local text = part[index + 1]
      found[#found + 1] = {
        member = part[index], number = number_of(part[index]), score = tonumber(text), text = text,
      }
    end
    if #part == 2 * share and (not horizon or comes_first(found[#found], horizon)) then
      horizon = found[#found]
    end
  end
  table.sort(found, comes_first)
  local within = #found
  while horizon and comes_first(horizon, found[within]) do
    within = within - 1
  end
  local last = within > 0 and found[within].text or nil
  for index = 1, within do
    found[index] = found[index].member
  end
  return found, within, horizon == nil, last
end

-- Payloads may be large: in portions, for as long as there is room.
local PORTION, ROOM = 100, 1048576
local function bodies_of(ids)
  local bodies, size = {}, 0
  for first = 1, #ids, PORTION do
    local last = math.min(first + PORTION - 1, #ids)
    local part = size < ROOM and call('HMGET', P .. 'body', unpack(ids, first, last))
    for index = first, last do
      local body = part and part[index - first + 1]
      bodies[index] = part and body or not part and 0
      size = size + (body and #body or 0)
    end
  end
  return bodies
end

local keys = smallest_group()
if not keys or #keys == 0 then
  return {now(), 1, '', ''}
end
local members, count, all, last = nil, 0, true, nil
if #keys == 1 then
  members, count, all, last = candidates_of(keys[1])
else
  members, count, all, last = candidates_of_all(keys)
end
local reply = {now(), all and 1 or 0, last or score, last and members[count] or member}
local ids = {}
for index = 1, count do
  ids[index] = string.sub(members[index], before_id + 1)
end
local records, bodies = fetch(P .. 'item', ids), is_asked('b') and bodies_of(ids) or {}
local failures, results = is_asked('f') and fetch(P .. 'failure', ids) or {}, is_asked('r') and fetch(P .. 'result', ids) or {}
local parked = is_asked('p')
for index, id in ipairs(ids) do
  local size = #reply
  reply[size + 1], reply[size + 2], reply[size + 3] = id, records[index], bodies[index] or false
  reply[size + 4], reply[size + 5] = failures[index] or false, results[index] or false
  reply[size + 6] = parked and is_parked(id, records[index]) and 1 or false
end
return reply
