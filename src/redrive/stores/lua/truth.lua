-- Whether the indexes are what the items say, for the scripts that check and mend.
-- Inputs:    misplaced(records), records by id; belongs(id, record, key, score, member)
-- Outputs:   by id, 1 for an item that is not in all its indexes, or not at its place, and 2 for a record that cannot be;
--            whether an entry of an index is its item's
-- Atomicity: reads.

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

local function misplaced(records)
  local found = {}
  for id, m in pairs(records) do
    owner = id
    -- A record of wrong kinds of values breaks what is made of it.
    if type(m[SEQ]) ~= 'number' or not pcall(shares, id, m, collect) then
      found[id] = IMPOSSIBLE
    else
      collect(P .. 'items', m[SEQ], id)
    end
  end
  for key, list in pairs(members) do
    local there = scores(key, list)
    for index, id in ipairs(owners[key]) do
      if there[index] ~= wanted[key][index] then
        found[id] = found[id] or MISPLACED
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
    pcall(shares, id, m, compare)
  end
  return hit
end
