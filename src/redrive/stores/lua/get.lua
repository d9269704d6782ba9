#!lua flags=no-writes
-- get: one item with everything that happened to it, and what it waits for.
-- Inputs:    the id; how many of those it waits for at most
-- Outputs:   record, payload, evidence, result (nil for what is not there), 1 if it is parked, attempts, deeds (or nil), 1 if
--            it was pruned; id and number in turn of those it waits for, 0 for one that is not there; its revisions
-- Atomicity: one read
-- Uses: parking

local id = ARGV[2]
local kept = call('HGET', P .. 'item', id)
local m = unpacked(kept)

local function blockers()
  local found = call('ZRANGE', P .. 'waits:' .. id, 0, tonumber(ARGV[3]) - 1, 'WITHSCORES')
  for at = 1, #found, 2 do
    -- Its number may have been forgotten since, with the item.
    found[at + 1] = call('HEXISTS', P .. 'item', found[at]) == 1 and tonumber(found[at + 1]) or 0
  end
  local line = tied(m, ORDERED) and list_of(call('HGET', P .. 'lines:' .. m[QUEUE], m[TERMS][ORDER_KEY]))
  if line and line[2] ~= id and line[2] ~= '' then
    local head = load(line[2])
    found[#found + 1] = line[2]
    found[#found + 1] = head and head[SEQ] or 0
  end
  return found
end

return {
  kept,
  call('HGET', P .. 'body', id),
  call('HGET', P .. 'failure', id),
  call('HGET', P .. 'result', id),
  is_parked(id, kept) and 1 or false,
  call('LRANGE', P .. 'attempts:' .. id, 0, -1),
  call('HGET', P .. 'deeds', id),
  call('HEXISTS', P .. 'tombstones', id),
  m and m[STATE] == 'ready' and (m[HOLD] or 0) > 0 and blockers() or {},
  m and m[TERMS] and m[TERMS][DESCRIBED] and call('LRANGE', P .. 'revisions:' .. id, 0, -1) or {},
}
