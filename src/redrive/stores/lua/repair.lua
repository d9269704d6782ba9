#!lua flags=allow-oom
-- repair: makes what is kept beside the items follow from them again. No item is touched.
-- Inputs:    four lists, each after its length: ids of items that are not where they would be looked for; index and member in turn of
--            entries that no item has; queues that are not declared; causes and queues joined by NUL
-- Outputs:   none
-- Atomicity: one script, which looks again at each: what has been put right meanwhile, or has gone, stays as it is
-- Uses: ledger lines truth

local at = 2
local function next_list()
  local list = {}
  for index = 1, tonumber(ARGV[at]) do
    list[index] = ARGV[at + index]
  end
  at = at + #list + 1
  return list
end

for _, id in ipairs(next_list()) do
  local m = load(id)
  if m and misplaced({[id] = m})[id] ~= IMPOSSIBLE then
    add(P .. 'items', m[SEQ], id)
    places(id, m, add)
    if m[STATE] == 'ready' then
      wake(m[QUEUE])
    end
  end
end

-- What is there but cannot be read may be meant by any entry: it stays to be found.
local function is_mine(id, key, score, member)
  local kept = call('HGET', P .. 'item', id)
  local m = unpacked(kept)
  return kept and (not m or belongs(id, m, key, score, member))
end

local strays = next_list()
for index = 1, #strays, 2 do
  local key, member = sound(P .. strays[index], 'zset'), strays[index + 1]
  local score = tonumber(call('ZSCORE', key, member) or '')
  -- In some indexes the number of the item stands before its id.
  if score and not is_mine(member, key, score, member) and not is_mine(id_at(member), key, score, member) then
    remove(key, member)
  end
end

for _, queue in ipairs(next_list()) do
  if call('HEXISTS', sound(P .. 'queues', 'hash'), queue) == 0 then
    set(P .. 'queues', queue, cmsgpack.pack({false, '', ''}))
  end
end

sound(P .. 'causes', 'zset')
for _, cause in ipairs(next_list()) do
  sound(P .. 'letters:cq:open:' .. cause, 'zset')
  recounted[cause] = true
end

local highest = tonumber(call('ZREVRANGE', sound(P .. 'items', 'zset'), 0, 0, 'WITHSCORES')[2] or 0)
local last = tonumber(call('HGET', sound(P .. 'sequence', 'hash'), 'item') or 0)
if not last or last < highest then
  set(P .. 'sequence', 'item', string.format('%.0f', highest))
end
write()
