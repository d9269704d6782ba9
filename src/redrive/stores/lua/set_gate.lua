#!lua flags=allow-oom
-- set_gate: compares the version of a gate and sets it. What leases spent goes on.
-- Inputs:    the name; the version that must be current; msgpack [interval, burst, share, cap, floor], false for none; "1"
--            to let nothing pass before one interval is over; its body; the audit entry, if there is one: topic; meta; body
-- Outputs:   1 and the gate as limits.lua has it; or 0 and the version that is current: then nothing was changed
-- Atomicity: one script
-- Uses: entering

local name, expect, asked = ARGV[2], tonumber(ARGV[3]), cmsgpack.unpack(ARGV[4])
local shut, body = ARGV[5] == '1', ARGV[6]
local before = list_of(call('HGET', sound(P .. 'gates', 'hash'), name)) or {0, false, 1, false, 0, 1, 0, 0, 0}
if before[1] ~= expect then
  return {0, before[1]}
end
local next_at = before[7]
if shut and asked[1] then
  next_at = now() * 1000 + asked[1] * asked[2]
end
local gate = cmsgpack.pack({
  expect + 1, asked[1], asked[2], asked[3], asked[4], asked[5], next_at, before[8], before[9],
})
local families = {}
set(P .. 'gates', name, gate)
set(P .. 'gate_bodies', name, body)
for _, queue in ipairs(call('SMEMBERS', sound(P .. 'behind:' .. name, 'set'))) do
  wake(queue)
  if string.sub(queue, -2) == ':*' then
    families[#families + 1] = queue
  end
end
-- A family may give each member the gate of its own name.
local _, settings = kin.of(name)
if settings and settings[4] and settings[4][7] == '*' then
  wake(name)
end
enter_audit(7)
write()
for _, family in ipairs(families) do
  kin.lower_all(family)
end
return {1, gate}
