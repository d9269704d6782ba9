-- Letters as they were when they were replayed, and back to them.
-- Inputs:    recall.read(ids, change) first; recall.keep(id, record) before a replay changes the record; recall.refusal(id,
--            record); recall.reservation(record, change, replay); recall.back(id, record, time) for one that is recalled, and
--            recall.put_back() after conclude
-- Outputs:   nil, or a list: 'recall' and why not, 'reserved' or 'unreserved' and the replay
-- Atomicity: reads and notes down; the script writes.
-- Keys:      recall hash, id -> the fields that `keep` lists; valid while the item is ready and has as many deliveries

local KEPT_DELIVERIES, KEPT_QUEUE, KEPT_DUE_AT, KEPT_RENEWED_AT, KEPT_ATTEMPT, KEPT_ERRORS, KEPT_CRASHES = 1, 2, 3, 4, 5, 6, 7
local KEPT_LAST_CHANCE, KEPT_ENDED_AT, KEPT_LETTER, KEPT_FAILURE, KEPT_PLACE, KEPT_GAP, KEPT_ROLE = 8, 9, 10, 11, 12, 13, 14
local WAS_HEAD, WAS_GAP = 1, 2

local recall = {of = {}, recalled = {}}

-- What a replay needs is the evidence, and what a recall needs is what was kept.
function recall.read(ids, change)
  local name = change == 'replay' and 'failure' or change == 'recall' and 'recall'
  if name then
    for index, kept in ipairs(fetch(sound(P .. name, 'hash'), ids)) do
      recall.of[ids[index]] = change == 'recall' and list_of(kept) or kept
    end
  end
end

function recall.keep(id, m)
  local place, gap, role = 0, '', 0
  if tied(m, ORDERED) then
    local line = line_of_item(m)
    place, gap = m[TERMS][PLACE], m[TERMS][GAP]
    role = line.head == id and WAS_HEAD or line.gap == id and WAS_GAP or 0
  end
  set(P .. 'recall', id, cmsgpack.pack({
    m[DELIVERIES], m[QUEUE], m[DUE_AT], m[RENEWED_AT], m[ATTEMPT], m[ERRORS], m[CRASHES],
    m[LAST_CHANCE], m[ENDED_AT], m[LETTER], recall.of[id], place, gap, role,
  }))
end

function recall.refusal(id, m)
  local kept = recall.of[id]
  if not kept then
    return {'recall', m[STATE] == 'dead' and 'letter' or 'none'}
  elseif kept[KEPT_DELIVERIES] ~= m[DELIVERIES] then
    return {'recall', 'leased'}
  end
  return m[STATE] ~= 'ready' and {'recall', 'ended'} or nil
end

-- Changes that a reservation does not concern: those for any item, and those for no letter.
recall.other = {
  tag = true, note = true, recall = true, cancel = true,
  set_policy = true, run_now = true, expire = true, park = true, unpark = true,
}

-- Whether a letter is kept for another replay than the one that is named, or is not kept although it must be.
function recall.reservation(m, change, named)
  local replay = m[LETTER] and m[LETTER][RESERVED] or ''
  if not m[LETTER] or recall.other[change] then
    return nil
  elseif replay ~= '' and replay ~= named and change ~= 'unreserve' then
    return {'reserved', replay}
  end
  return replay == '' and (named ~= '' or change == 'unreserve') and {'unreserved', named} or nil
end

-- One that was no head lets its line go on, and so does one that goes back to another queue.
function recall.back(id, m, time)
  local kept = recall.of[id]
  if tied(m, LIMITED) and m[HOLD] == 0 then
    vacate(m)
  end
  if m[TIES] then
    end_ready(id, m, 'dead', time, kept[KEPT_ROLE] ~= WAS_HEAD or kept[KEPT_QUEUE] ~= m[QUEUE])
  end
  m[STATE], m[ENDED_AT], m[LETTER] = 'dead', kept[KEPT_ENDED_AT], kept[KEPT_LETTER]
  m[DUE_AT], m[RENEWED_AT], m[LAST_CHANCE] = kept[KEPT_DUE_AT], kept[KEPT_RENEWED_AT], kept[KEPT_LAST_CHANCE]
  m[ATTEMPT], m[ERRORS], m[CRASHES] = kept[KEPT_ATTEMPT], kept[KEPT_ERRORS], kept[KEPT_CRASHES]
  m[REPLAYS] = m[REPLAYS] - 1
  m[LETTER][RESERVED] = nil
  if kept[KEPT_FAILURE] then
    set(P .. 'failure', id, kept[KEPT_FAILURE])
  end
  unset(P .. 'recall', id)
  recall.recalled[#recall.recalled + 1] = {id, m, kept}
end

-- In the order of their places, which they have again. The head keeps the others back again if none has come to the front.
function recall.put_back()
  table.sort(recall.recalled, function(one, other)
    return one[3][KEPT_PLACE] < other[3][KEPT_PLACE]
  end)
  for _, one in ipairs(recall.recalled) do
    local id, m, kept = one[1], one[2], one[3]
    m[QUEUE] = kept[KEPT_QUEUE]
    if tied(m, ORDERED) then
      m[TERMS][PLACE], m[TERMS][GAP] = kept[KEPT_PLACE], kept[KEPT_GAP]
      local line, mode = line_of_item(m), dead_order(m[QUEUE])
      if kept[KEPT_ROLE] == WAS_HEAD and line.head == '' and mode ~= 'skip' then
        line.head, line.status = id, mode == 'park' and PARKED or BLOCKED
        line.last = math.max(line.last, m[TERMS][PLACE])
      elseif kept[KEPT_ROLE] == WAS_GAP and line.gap == '' then
        line.gap = id
      end
    end
  end
end
