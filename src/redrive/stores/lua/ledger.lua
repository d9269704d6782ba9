-- Small sorted sets that a script may read again after it has noted down a change of them.
-- Inputs:    enlist(key, score, member); delist(key, member); first_in(key); all_in(key); count_in(key)
-- Outputs:   the member with the least score, or nil; all members, in no order; how many
-- Atomicity: reads and notes down; the script writes.

-- By key: member -> its score, false for one that goes.
local listed = {}
-- By key: so many of the first are known to go; how many are there, if that was asked; whether any came to it.
local passed_by, counts, grown = {}, {}, {}

local function changes_of(key)
  local changes = listed[key]
  if not changes then
    changes = {}
    listed[sound(key, 'zset')] = changes
  end
  return changes
end

-- What is enlisted was not there before, what is delisted was.
local function enlist(key, score, member)
  local changes = changes_of(key)
  if counts[key] and not changes[member] then
    counts[key] = counts[key] + 1
  end
  changes[member], grown[key] = score, true
end

local function delist(key, member)
  local changes = changes_of(key)
  if counts[key] and changes[member] ~= false then
    counts[key] = counts[key] - 1
  end
  changes[member] = false
end

local function first_kept(key, changes)
  local rank = passed_by[key] or 0
  while true do
    local found = call('ZRANGE', key, rank, rank, 'WITHSCORES')
    if not found[1] or changes[found[1]] == nil then
      passed_by[key] = rank
      return found[1], tonumber(found[2])
    end
    rank = rank + 1
  end
end

local function first_in(key)
  local changes = listed[key]
  if not changes then
    -- It answers, so it is sound: that need not be asked for each of many small sets.
    local read, found = pcall(call, 'ZRANGE', key, 0, 0)
    if read then
      kinds[key] = true
      return found[1]
    end
    return sound(key, 'zset') and nil
  end
  local first, least = first_kept(key, changes)
  if not grown[key] then
    return first
  end
  for member, score in pairs(changes) do
    if score and (not first or score < least) then
      first, least = member, score
    end
  end
  return first
end

local function all_in(key)
  local found = call('ZRANGE', sound(key, 'zset'), 0, -1)
  local changes = listed[key]
  if not changes then
    return found
  end
  local all = {}
  for _, member in ipairs(found) do
    if changes[member] == nil then
      all[#all + 1] = member
    end
  end
  for member, score in pairs(changes) do
    if score then
      all[#all + 1] = member
    end
  end
  return all
end

local function count_in(key)
  if not counts[key] then
    local count = call('ZCARD', sound(key, 'zset'))
    for _, score in pairs(listed[key] or {}) do
      count = count + (score and 1 or -1)
    end
    counts[key] = count
  end
  return counts[key]
end

before_write[#before_write + 1] = function()
  for key, changes in pairs(listed) do
    for member, score in pairs(changes) do
      if score then
        add(key, score, member)
      else
        remove(key, member)
      end
    end
  end
  listed, passed_by, counts, grown = {}, {}, {}, {}
end
