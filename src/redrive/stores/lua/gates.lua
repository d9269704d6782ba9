#!lua flags=no-writes
-- gates: one gate, or all.
-- Inputs:    the name, if one is meant
-- Outputs:   name, what limits.lua has of it, and its body, of each that there is
-- Atomicity: one read

local names = ARGV[2] and {ARGV[2]} or call('HKEYS', P .. 'gates')
local reply = {}
for _, name in ipairs(names) do
  local kept = call('HGET', P .. 'gates', name)
  if kept then
    local size = #reply
    reply[size + 1], reply[size + 2], reply[size + 3] = name, kept, call('HGET', P .. 'gate_bodies', name) or ''
  end
end
return reply
