-- Whether the indexes are what the items say, for the scripts that check and mend.
-- Inputs:    shares_of(id, record); misplaced(records), records by id; belongs(id, record, key, score, member)
-- Outputs:   {key, score, member} of every index an item is in, or nil for a record that cannot be; by id, those of
--            them that are not so in the index; whether an entry of an index is its item's
-- Atomicity: reads.

local function shares_of(id, m)
  local found = {}
  local function note(key, score, member)
    found[#found + 1] = {key, tonumber(score) or refuse('CORRUPT a score is none'), member}
  end
  -- A record of wrong kinds of values breaks what is made of it.
  local made = pcall(function()
    note(P .. 'items', m[SEQ], id)
    shares(id, m, note)
  end)
  return made and found or nil
end

local function scores(key, members)
  local found = {}
  if call('TYPE', key).ok == 'zset' then
    for first = 1, #members, MOST do
      local part = call('ZMSCORE', key, unpack(members, first, math.min(first + MOST - 1, #members)))
      for index = 1, #part do
        found[first + index - 1] = tonumber(part[index] or '')
      end
    end
  end
  return found
end

local function misplaced(records)
  local members, owners = {}, {}
  for id, m in pairs(records) do
    for _, share in ipairs(shares_of(id, m) or {}) do
      local key = share[1]
      members[key], owners[key] = members[key] or {}, owners[key] or {}
      table.insert(members[key], share[3])
      table.insert(owners[key], {id, share})
    end
  end
  local missing = {}
  for key, list in pairs(members) do
    local there = scores(key, list)
    for index, owner in ipairs(owners[key]) do
      local id, share = owner[1], owner[2]
      if there[index] ~= share[2] then
        missing[id] = missing[id] or {}
        table.insert(missing[id], share)
      end
    end
  end
  return missing
end

local function belongs(id, m, key, score, member)
  for _, share in ipairs(m and shares_of(id, m) or {}) do
    if share[1] == key and share[2] == score and share[3] == member then
      return true
    end
  end
  return false
end
