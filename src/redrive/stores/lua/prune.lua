#!lua flags=allow-oom
-- prune: removes resolved items for good and buries them.
-- Inputs:    the audit entry: actor, reason and request id as JSON, and its body up to and from the removed ids; then
--            per item: id; id as JSON; the record it was judged by; its tombstone as JSON
-- Outputs:   now; then the ids that were removed: those whose record is what it was
-- Atomicity: one script, with the tombstones and the audit entry
-- Uses: tags entering

-- A lifted item goes for good.
local function drop(id, m)
  tag_shares(id, m, remove_share)
  remove(P .. 'items', id)
  unset(P .. 'item', id)
  unset(P .. 'body', id)
  unset(P .. 'result', id)
  unset(P .. 'failure', id)
  delete(P .. 'attempts:' .. id, 'list')
  delete(P .. 'revisions:' .. id, 'list')
  unset(P .. 'deeds', id)
  unset(P .. 'recall', id)
end

local meta, head, tail = ARGV[2], ARGV[3], ARGV[4]
local at = now()
local ids = {}
for first = 5, #ARGV, 4 do
  ids[#ids + 1] = ARGV[first]
end
local records = fetch(sound(P .. 'item', 'hash'), ids)
local reply, names = {at}, {}
for index, id in ipairs(ids) do
  local first = 1 + 4 * index
  local m = unpacked(records[index])
  if m and records[index] == ARGV[first + 2] then
    lift(id, m)
    drop(id, m)
    if call('ZSCORE', sound(P .. 'changes', 'zset'), id) then
      change_letter(id)
    end
    set(P .. 'tombstones', id, string.format('%016d', at) .. ARGV[first + 3])
    reply[#reply + 1] = id
    names[#names + 1] = ARGV[first + 1]
  end
end
if #names > 0 then
  enter('audit', meta, head .. table.concat(names, ',') .. tail, at)
  write()
end
return reply
