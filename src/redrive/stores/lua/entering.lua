-- New entries of the journal, for append, for the acts of amend and prune, and those that go with other writes.
-- Inputs:    enter(topic, meta, body, time): meta is actor, reason and request id as JSON; enter_audit(number of the
--            argument that is the topic of an entry, before its meta and body; there may be none)
-- Outputs:   its position. Kept are position and time in 16 digits each, the length of meta in 8, meta, body
-- Atomicity: notes down; the script writes.

local last_position = nil

local function enter(topic, meta, body, time)
  if not last_position then
    last_position = tonumber(call('HGET', sound(P .. 'sequence', 'hash'), 'journal') or 0)
    if not last_position then
      refuse('CORRUPT the position of the last entry is none')
    end
  end
  last_position = last_position + 1
  add(P .. 'journal:' .. topic, last_position, string.format('%016d%016d%08d', last_position, time, #meta) .. meta .. body)
  -- Of several in a script the last one stays.
  set(P .. 'sequence', 'journal', string.format('%.0f', last_position))
  return last_position
end

local function enter_audit(first)
  if ARGV[first] then
    enter(ARGV[first], ARGV[first + 1], ARGV[first + 2], now())
  end
end
