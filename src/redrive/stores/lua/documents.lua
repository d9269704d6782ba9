#!lua
-- documents: writes documents, all or none. A deleted one keeps its version, so that it never fits again.
-- Inputs:    per write: kind; key; the version that must be current or empty; "1" to write, "0" to delete; the body. Then
--            the audit entry, if there is one: topic; meta; body
-- Outputs:   the version now of each write, 0 for a deleted one; or, for a version that does not fit, the number of the
--            write and the version there is, as a list in a list
-- Atomicity: one script; nothing is written unless all versions fit
-- Uses: entering

local current = {}

-- What is there: its version, and whether it is a document. In the order of the writes, the earlier ones included.
local function look(key, field)
  local known = current[key] and current[key][field]
  if known then
    return known
  end
  local kept = call('HGET', sound(key, 'hash'), field)
  known = {version = 0, there = false}
  if kept then
    known.version = tonumber(string.sub(kept, 2, 17)) or refuse('CORRUPT the document ' .. field .. ' in ' .. key)
    known.there = string.sub(kept, 1, 1) == '1'
  end
  current[key] = current[key] or {}
  current[key][field] = known
  return known
end

local versions, audit = {}, 2 + 5 * math.floor((#ARGV - 1) / 5)
for first = 2, audit - 1, 5 do
  local key, field, expect, body = P .. 'documents:' .. ARGV[first], ARGV[first + 1], ARGV[first + 2], ARGV[first + 4]
  local known = look(key, field)
  local version = known.there and known.version or 0
  if expect ~= '' and tonumber(expect) ~= version then
    return {{(first - 2) / 5, version}}
  end
  if ARGV[first + 3] == '1' then
    known.version, known.there, known.body = known.version + 1, true, body
  else
    known.there, known.body = false, ''
  end
  versions[#versions + 1] = known.there and known.version or 0
end
for key, fields in pairs(current) do
  for field, known in pairs(fields) do
    if known.version > 0 then
      set(key, field, (known.there and '1' or '0') .. string.format('%016d', known.version) .. known.body)
    end
  end
end
enter_audit(audit)
write()
return versions
