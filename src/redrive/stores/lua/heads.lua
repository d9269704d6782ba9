-- Heads of lines that are done and have no other tie: so nearly all end that have an order key, and then their lines end too,
-- or go one step. The same as ties.lua does, without a table for each; what is not so plain is left to it.
-- Inputs:    head_done(id, queue, order key, place, number, time of put) for each; go_on() at last, before conclude
-- Outputs:   none
-- Atomicity: reads and notes down; the script writes. Nothing may take a new head after go_on.

local LINE_HEAD, LINE_FIELDS, LINE_HEAD_SIZE = '\148', 4, 1
local FACTS = 5

-- By queue: the facts of each, one after the other.
local finished = {}

local function head_done(id, queue, key, place, seq, put_at)
  local facts = under(finished, queue)
  local at = #facts
  facts[at + 1], facts[at + 2], facts[at + 3], facts[at + 4], facts[at + 5] = id, key, place, seq, put_at
end

local function leave_to_ties(queue, facts, at)
  ended(facts[at], {
    [SEQ] = facts[at + 3], [QUEUE] = queue, [STATE] = 'done', [ENQUEUED_AT] = facts[at + 4], [TIES] = ORDERED,
    [TERMS] = {facts[at + 1], facts[at + 2]},
  })
end

-- Where followers are, and what the line will be without its head: nil if that is not plain. No followers: it ends.
local function next_of(queue, facts, at, kept)
  local id, key, place = facts[at], facts[at + 1], facts[at + 2]
  local read, left, last, head, status, gap = pcall(values_of, kept or '', LINE_FIELDS, LINE_HEAD_SIZE)
  if not read or left ~= -1 or head ~= id or status ~= FLOWING or gap ~= '' then
    return nil
  end
  local followers = place < last and P .. 'followers:' .. queue .. '\0' .. key
  return last, followers, followers and first_in(followers)
end

local function step_all(queue, facts)
  local keys, lines_key = {}, sound(P .. 'lines:' .. queue, 'hash')
  for at = 2, #facts, FACTS do
    keys[#keys + 1] = facts[at]
  end
  local steps, ids = {}, {}
  for index, kept in ipairs(fetch(lines_key, keys)) do
    local at = index * FACTS - FACTS + 1
    local last, followers, first = next_of(queue, facts, at, kept)
    if not last then
      leave_to_ties(queue, facts, at)
    elseif first then
      steps[#steps + 1] = {at, last, followers}
      ids[#ids + 1] = first
    else
      unset(lines_key, facts[at + 1])
    end
  end
  for index, kept in ipairs(#ids > 0 and fetch(ITEM, ids) or {}) do
    local at, last, followers = unpack(steps[index])
    if promote(ids[index], kept) then
      remove(followers, ids[index])
      set(lines_key, facts[at + 1], LINE_HEAD .. packed(last, ids[index], FLOWING, ''))
    else
      leave_to_ties(queue, facts, at)
    end
  end
end

local function go_on()
  -- Whatever else ends or comes in this script may be of the same lines.
  local alone = #over == 0 and next(lines) == nil and next(touched) == nil
  for queue, facts in pairs(finished) do
    if alone then
      step_all(queue, facts)
    else
      for at = 1, #facts, FACTS do
        leave_to_ties(queue, facts, at)
      end
    end
  end
  finished = {}
end
