-- Letters, as if each item had been put, leased at once, and had failed for good after a while.
-- Inputs:    ARGV[2] msgpack list of [id, put at, ran for, number of its kind]; ARGV[3] the worker; ARGV[4] the reason;
--            ARGV[5] the payload of all as it is kept; ARGV[6] msgpack list of kinds [queue, cause, error, category];
--            ARGV[7…] of each kind its failure, and the record of the attempt around its two times, in three parts
-- Outputs:   none
-- Atomicity: one script, on a namespace that nobody else uses

local worker, reason, body, kinds = ARGV[3], ARGV[4], ARGV[5], cmsgpack.unpack(ARGV[6])
local seq = tonumber(call('HGET', P .. 'sequence', 'item') or 0)
for _, row in ipairs(cmsgpack.unpack(ARGV[2])) do
  local id, at, ran, kind = row[1], row[2], row[3], kinds[row[4]]
  local queue, evidence = kind[1], 4 * row[4] + 3
  local attempt = {ARGV[evidence + 1], string.format('%.0f', at), ARGV[evidence + 2], string.format('%.0f', ran), ARGV[evidence + 3]}
  seq = seq + 1
  set(P .. 'queues', queue, cmsgpack.pack({false, '', ''}))
  add(P .. 'items', seq, id)
  set(P .. 'body', id, body)
  set(P .. 'failure', id, ARGV[evidence])
  push(P .. 'attempts:' .. id, table.concat(attempt))
  lay(id, {seq, queue, 'dead', at, at, at, 1, 1, 1, 0, 0, false, false, worker, at, false, at + ran, 0,
    {reason, at + ran, 'open', kind[2], kind[3], kind[4], ''}})
end
set(P .. 'sequence', 'item', string.format('%.0f', seq))
write()
