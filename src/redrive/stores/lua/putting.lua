-- New items, for put and for the follow-ups of settle.
-- Inputs:    put(entries, time, full): entries of {id, queue, delay, body} and, for what is not plain, {…, due at or false,
--            priority, ties, terms or false} and, where it has a kind or a release, {…, kind, release}; terms as lines.lua has them. `full` asks for room in the queues
-- Outputs:   the places of those entries whose id is taken already; place and holder in turn of those whose dedupe key is
--            held; nil, or why nothing may be added: {'after', place, awaited id}, {'never', place, awaited id} or
--            {'full', {queue, fill, capacity, more}, …}
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

-- By queue: how many are added, and how many it has room for. A queue that is not declared is.
local added, capacities, wholes = {}, {}, {}
local function count_added(queue)
  if added[queue] then
    added[queue] = added[queue] + 1
    if wholes[queue] then
      added[wholes[queue]] = added[wholes[queue]] + 1
    end
    return
  end
  added[queue] = 1
  local family, settings = kin.of(queue)
  if family and settings[4] and settings[4][5] then
    wholes[queue], capacities[family] = family, settings[4][5]
    added[family] = (added[family] or 0) + 1
  end
  local declared = declaration(queue)
  if not declared and not call('HGET', P .. 'queues', queue) then
    set(P .. 'queues', queue, cmsgpack.pack({false, '', ''}))
    return
  end
  capacities[queue] = declared and declared[4] and declared[4][5] or nil
end

local function new_record(seq, entry, time)
  local due = time + entry[3]
  local m = {
    seq, entry[2], 'ready', time, due, time, 0, 0, 0, 0, 0, false, false, false, false, false, false, 0, false,
  }
  if entry[6] then
    m[DUE_AT] = entry[5] and math.max(due, entry[5]) or due
    if entry[6] > 0 or entry[8] or entry[9] then
      m[PRIORITY], m[HOLD], m[TIES], m[TERMS] = entry[6], 0, entry[7], entry[8]
      m[KIND], m[RELEASE] = entry[9], entry[10]
    end
  end
  return m
end

-- Whether one of them waits for others, which may be of the same call.
local function any_waits(entries)
  for _, entry in ipairs(entries) do
    if entry[7] and band(entry[7], WAITS) ~= 0 then
      return true
    end
  end
  return false
end

local function put(entries, time, full)
  local already, duplicates, bound = {}, {}, {}
  if #entries == 0 then
    return already, duplicates
  end
  local taken, together = taken_ids(entries), any_waits(entries)
  local first = tonumber(call('HGET', sound(P .. 'sequence', 'hash'), 'item') or 0)
  if not first then
    refuse('CORRUPT the number of the last item is none')
  end
  local seq = first
  for index, entry in ipairs(entries) do
    local id = entry[1]
    check_sealed(entry[2], entry[4])
    local m = not taken[id] and new_record(seq + 1, entry, time)
    local holder = m and m[TIES] and tied(m, DEDUPED) and bonds().claimed_by_another(id, m, time)
    if not m then
      already[#already + 1] = index
    elseif holder then
      duplicates[#duplicates + 1], duplicates[#duplicates + 2] = index, holder
    else
      taken[id] = true
      seq = seq + 1
      count_added(entry[2])
      add(P .. 'items', seq, id)
      set(P .. 'body', id, entry[4])
      if (m[TIES] or 0) > 0 then
        bound[#bound + 1] = {id, touch(id, m), index}
      elseif together then
        touch(id, m)
      else
        lay(id, m)
      end
    end
  end
  if seq > first then
    set(P .. 'sequence', 'item', string.format('%.0f', seq))
  end
  local refusal = #bound > 0 and bonds().bind(bound, time)
  if not refusal and full and next(capacities) then
    refusal = bonds().overfull(added, capacities)
  end
  return already, duplicates, refusal or nil
end
