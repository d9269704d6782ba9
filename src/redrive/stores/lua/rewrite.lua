#!lua
-- rewrite: of reencrypt, bodies that say the same under another key.
-- Inputs:    the audit entry, its meta empty for none: meta; its body up to and from the changed ids. Then in turn: body or
--            result; the id; the number of an earlier payload, or -1; what is kept; what is to be kept; the id as JSON
-- Outputs:   how many were replaced: those that are still what was read
-- Atomicity: everything is read first, then written at once
-- Uses: entering

local done, revisions, names, named = 0, {}, {}, {}

local function count(at)
  done = done + 1
  if not named[ARGV[at]] then
    named[ARGV[at]] = true
    names[#names + 1] = ARGV[at]
  end
end

for at = 5, #ARGV, 6 do
  local id, number, old, new = ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4]
  if number < 0 then
    local key = sound(P .. ARGV[at], 'hash')
    if call('HGET', key, id) == old then
      set(key, id, new)
      count(at + 5)
    end
  else
    local key = sound(P .. 'revisions:' .. id, 'list')
    local kept = call('LRANGE', key, number, number)[1]
    -- Before the payload stands who replaced it, and when.
    local start = kept and 9 + tonumber(string.sub(kept, 1, 8))
    if kept and string.sub(kept, start) == old then
      revisions[#revisions + 1] = {key, number, string.sub(kept, 1, start - 1) .. new}
      count(at + 5)
    end
  end
end
if ARGV[2] ~= '' and done > 0 then
  enter('audit', ARGV[2], ARGV[3] .. table.concat(names, ',') .. ARGV[4], now())
end
write()
for _, one in ipairs(revisions) do
  call('LSET', one[1], one[2], one[3])
end
return done
