#!lua
-- Adds items, all or none. An id that exists, or was pruned, is left as it is.
-- Inputs:    ARGV[2] msgpack list of [id, queue, delay]; ARGV[3…] their payloads as they are kept
-- Outputs:   the places (from 1) of those that were there already
-- Atomicity: everything is read and judged first, then written at once. Refused before it starts when memory is full.
-- Uses: putting

local entries = cmsgpack.unpack(ARGV[2])
for index, entry in ipairs(entries) do
  entry[4] = ARGV[index + 2]
end
local already = put(entries, now())
write()
return already
