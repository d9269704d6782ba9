#!lua
-- rewrite: of reencrypt, bodies that say the same under another key.
-- Inputs:    in turn: body or result; the id; the number of an earlier payload, or -1; what is kept; what is to be kept
-- Outputs:   how many were replaced: those that are still what was read
-- Atomicity: everything is read first, then written at once

local done, revisions = 0, {}
for at = 2, #ARGV, 5 do
  local id, number, old, new = ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4]
  if number < 0 then
    local key = sound(P .. ARGV[at], 'hash')
    if call('HGET', key, id) == old then
      set(key, id, new)
      done = done + 1
    end
  else
    local key = sound(P .. 'revisions:' .. id, 'list')
    local kept = call('LRANGE', key, number, number)[1]
    -- Before the payload stands who replaced it, and when.
    local start = kept and 9 + tonumber(string.sub(kept, 1, 8))
    if kept and string.sub(kept, start) == old then
      revisions[#revisions + 1] = {key, number, string.sub(kept, 1, start - 1) .. new}
      done = done + 1
    end
  end
end
write()
for _, one in ipairs(revisions) do
  call('LSET', one[1], one[2], one[3])
end
return done
