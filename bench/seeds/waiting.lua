-- Items that wait, as if each had been put at its time.
-- Inputs:    ARGV[2] msgpack list of [id, put at, due at]; ARGV[3] their queue; ARGV[4] the payload of all as it is kept
-- Outputs:   none
-- Atomicity: one script, on a namespace that nobody else uses

local queue, body = ARGV[3], ARGV[4]
local seq = tonumber(call('HGET', P .. 'sequence', 'item') or 0)
set(P .. 'queues', queue, cmsgpack.pack({false, '', ''}))
for _, row in ipairs(cmsgpack.unpack(ARGV[2])) do
  local id, at, due = row[1], row[2], row[3]
  seq = seq + 1
  add(P .. 'items', seq, id)
  set(P .. 'body', id, body)
  lay(id, {seq, queue, 'ready', at, due, at, 0, 0, 0, 0, 0, false, false, false, false, false, false, 0, false})
end
set(P .. 'sequence', 'item', string.format('%.0f', seq))
write()
