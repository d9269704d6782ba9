#!lua flags=no-writes
-- find: the next candidates of a search in its order, for Python to judge.
-- Inputs:    how many; "last" or "first" (from which end); the place after which to go on, as score and member (both
--            empty to begin); how many characters stand before the id in a member; what to have too, by letters ("f"
--            the evidence of letters, "p" who is parked); then groups of indexes, each as its number of keys and the
--            keys without prefix, one with a * in front standing for one key per declared queue. Every group covers
--            what is searched for, and the smallest is read. "first" is for indexes where no two have the same score
-- Outputs:   now; 1 if that was all; score and member of the last candidate; then id, record, evidence (or nil) and 1
--            for one that is parked (or nil) of each. There may be fewer than asked for without that being all
-- Atomicity: one read. Places do not shift between two calls: an item's place is part of the item
-- Uses: parking

local many, backwards = tonumber(ARGV[2]), ARGV[3] == 'last'
local score, member = ARGV[4], ARGV[5]
local before_id = tonumber(ARGV[6])
local evidence, parked = string.find(ARGV[7], 'f', 1, true), string.find(ARGV[7], 'p', 1, true)
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
  if not backwards then
    return call('ZCOUNT', key, '-inf', score)
  end
  local low = call('ZCOUNT', key, '(' .. score, '+inf')
  local high = low + call('ZCOUNT', key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if number_of(call('ZREVRANGE', key, middle, middle)[1]) >= number_of(member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local function comes_first(a, b)
  if not backwards then
    return a.score < b.score
  end
  return a.score > b.score or (a.score == b.score and a.number > b.number)
end

-- Of every key a share; then up to where all keys have been read.
local function candidates(keys)
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
  if #keys > 1 then
    table.sort(found, comes_first)
  end
  local within = #found
  while horizon and comes_first(horizon, found[within]) do
    within = within - 1
  end
  return found, within, horizon == nil
end

local keys = smallest_group()
if not keys or #keys == 0 then
  return {now(), 1, '', ''}
end
local found, within, all = candidates(keys)
local last = found[within]
local reply = {now(), all and 1 or 0, last and last.text or score, last and last.member or member}
local ids = {}
for index = 1, within do
  ids[index] = string.sub(found[index].member, before_id + 1)
end
local records = fetch(P .. 'item', ids)
local failures = evidence and fetch(P .. 'failure', ids) or {}
for index, id in ipairs(ids) do
  local size = #reply
  reply[size + 1], reply[size + 2], reply[size + 3] = id, records[index], failures[index] or false
  reply[size + 4] = parked and is_parked(id, records[index]) and 1 or false
end
return reply
