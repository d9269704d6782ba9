#!lua
-- take_in: letters of another store enter with their evidence, all or none. An id that exists, or was pruned, is left as it is.
-- Inputs:    ARGV[2] msgpack list of [id, its record without a number, how many attempts, how many revisions]; the audit entry: actor, reason and
--            request id as JSON, and its body before, between and after the two places of the ids; actor, reason, request
--            id; then per letter: id as JSON, payload, evidence, its attempts, its revisions
-- Outputs:   the places of those whose id is taken
-- Atomicity: everything is read and judged first, then written at once. Refused before it starts when memory is full.
-- Uses: deeds tags sealing putting entering

local letters = cmsgpack.unpack(ARGV[2])
local meta, head, middle, tail = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local time = now()
local deed = deed_of(time, 'import', ARGV[7], ARGV[8], ARGV[9])

local function take_in(id, m, first, attempts, revisions)
  add(P .. 'items', m[SEQ], id)
  set(P .. 'body', id, ARGV[first + 1])
  set(P .. 'failure', id, ARGV[first + 2])
  set(P .. 'deeds', id, deed)
  for at = first + 3, first + 2 + attempts do
    push(P .. 'attempts:' .. id, ARGV[at])
  end
  for at = first + 3 + attempts, first + 2 + attempts + revisions do
    check_sealed(m[QUEUE], string.sub(ARGV[at], 9 + tonumber(string.sub(ARGV[at], 1, 8))))
    push(P .. 'revisions:' .. id, ARGV[at])
  end
  check_sealed(m[QUEUE], ARGV[first + 1])
  count_added(m[QUEUE])
  if tied(m, ORDERED) then
    m[TERMS][PLACE] = m[SEQ]
  end
  tag_shares(id, m, add)
  lay(id, m)
end

local taken = taken_ids(letters)
local seq = tonumber(call('HGET', sound(P .. 'sequence', 'hash'), 'item') or 0)
if not seq then
  refuse('CORRUPT the number of the last item is none')
end
local already, names, first = {}, {}, 10
for index, letter in ipairs(letters) do
  local id, m, attempts, revisions = letter[1], letter[2], letter[3], letter[4]
  if taken[id] then
    already[#already + 1] = index
  else
    taken[id], seq = true, seq + 1
    m[SEQ] = seq
    take_in(id, m, first, attempts, revisions)
    names[#names + 1] = ARGV[first]
  end
  first = first + 3 + attempts + revisions
end
if #names > 0 then
  set(P .. 'sequence', 'item', string.format('%.0f', seq))
  local added = table.concat(names, ',')
  enter('audit', meta, head .. added .. middle .. added .. tail, time)
  write()
end
return already
