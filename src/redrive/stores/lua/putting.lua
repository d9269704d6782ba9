-- New items, for put and for the follow-ups of settle.
-- Inputs:    put(entries, time): entries of {id, queue, delay, body}
-- Outputs:   the places of those entries whose id is taken already
-- Atomicity: notes down; the script writes.

local function taken_ids(entries)
  local ids, taken = {}, {}
  for index = 1, #entries do
    ids[index] = entries[index][1]
  end
  -- A pruned id counts as there: the late repeat of an old put must not run the work again.
  local hashes = {P .. 'item'}
  if call('EXISTS', sound(P .. 'tombstones', 'hash')) == 1 then
    hashes[2] = P .. 'tombstones'
  end
  for _, key in ipairs(hashes) do
    local found = fetch(sound(key, 'hash'), ids)
    for index = 1, #ids do
      if found[index] then
        taken[ids[index]] = true
      end
    end
  end
  return taken
end

local function declare(queue)
  if call('HEXISTS', sound(P .. 'queues', 'hash'), queue) == 0 then
    set(P .. 'queues', queue, cmsgpack.pack({false, '', ''}))
  end
end

local function put(entries, time)
  local already, declared = {}, {}
  if #entries == 0 then
    return already
  end
  local taken = taken_ids(entries)
  local first = tonumber(call('HGET', sound(P .. 'sequence', 'hash'), 'item') or 0)
  if not first then
    refuse('CORRUPT the number of the last item is none')
  end
  local seq = first
  for index, entry in ipairs(entries) do
    local id, queue = entry[1], entry[2]
    if taken[id] then
      already[#already + 1] = index
    else
      taken[id] = true
      seq = seq + 1
      if not declared[queue] then
        declared[queue] = true
        declare(queue)
      end
      add(P .. 'items', seq, id)
      set(P .. 'body', id, entry[4])
      lay(id, {seq, queue, 'ready', time, time + entry[3], time, 0, 0, 0, 0, 0, false, false, false, false, false, false, 0, false})
    end
  end
  if seq > first then
    set(P .. 'sequence', 'item', string.format('%.0f', seq))
  end
  return already
end
