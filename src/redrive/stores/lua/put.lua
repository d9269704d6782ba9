#!lua
-- Adds items, all or none. An id that exists, or was pruned, is left as it is.
-- Inputs:    ARGV[2] msgpack list of [id, queue, delay, …] as putting.lua has them, without bodies; ARGV[3…] their payloads as
--            they are kept; then the audit entry, if there is one: topic; meta; body
-- Outputs:   as putting.lua says; nothing if all were added
-- Atomicity: everything is read and judged first, then written at once. Refused before it starts when memory is full.
-- Uses: bonds(ledger lines ties binding) sealing putting auditing(entering)

local time = now()
local entries = cmsgpack.unpack(ARGV[2])
for index, entry in ipairs(entries) do
  entry[4] = ARGV[index + 2]
end
local already, duplicates, refusal = put(entries, time, true)
if refusal then
  return {already, duplicates, refusal}
end
if bonds_made then
  bonds_made.conclude(time)
end
if ARGV[#entries + 3] and #already + #duplicates < #entries then
  auditing().enter_audit(#entries + 3)
end
write()
return #already + #duplicates > 0 and {already, duplicates} or {}
