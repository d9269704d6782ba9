#!lua flags=allow-oom
-- sweep: one bite of retention. Looks at the next items in the order of enqueue, drops results that were kept long enough, and
-- tells which items were. Forgets dedupe keys whose window is over.
-- Inputs:    the number after which to go on; how many; for how long trash is kept where nobody has said so
-- Outputs:   now; how many it looked at; the number of the last; how many results it dropped; then id and record in turn of
--            the finished items, and the letters in the trash, whose time is over
-- Atomicity: one script; whoever removes them looks again (prune.lua)

local cursor, limit, trash_kept = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = now()

-- A key that was taken again since has no window yet.
local function forget_keys()
  for _, field in ipairs(call('ZRANGEBYSCORE', sound(P .. 'windows', 'zset'), '-inf', time, 'LIMIT', 0, MOST)) do
    local holder = list_of(call('HGET', sound(P .. 'dedupe', 'hash'), field))
    if holder and holder[2] and holder[2] <= time then
      unset(P .. 'dedupe', field)
    end
    remove(P .. 'windows', field)
  end
end

-- By queue: for how long finished items, results and trash are kept; nil if nothing is kept for a time only.
local KEEP, KEEP_RESULTS, KEEP_TRASH = 6, 7, 8
local function kept_for()
  local found, any = {}, call('EXISTS', P .. 'letters:trash') == 1
  local queues = call('HGETALL', sound(P .. 'queues', 'hash'))
  for at = 1, #queues, 2 do
    local declared = list_of(queues[at + 1]) or {}
    local _, family = kin.of(queues[at])
    found[queues[at]] = {
      declared[KEEP] or family and family[KEEP], declared[KEEP_RESULTS] or family and family[KEEP_RESULTS],
      declared[KEEP_TRASH] or family and family[KEEP_TRASH] or trash_kept,
    }
    any = any or declared[KEEP] or declared[KEEP_RESULTS]
  end
  return any and found or nil
end

local function is_over(m, keep)
  return keep and (m[STATE] == 'done' or m[STATE] == 'cancelled') and m[ENDED_AT] + keep <= time
end

-- The end of a letter in the trash is when it was discarded.
local function is_old_trash(m, keep)
  return m[LETTER] and m[LETTER][DISPOSITION] == 'trash' and m[ENDED_AT] + keep <= time
end

local function look(keeps)
  local found, ids = call('ZRANGEBYSCORE', sound(P .. 'items', 'zset'), '(' .. cursor, '+inf', 'WITHSCORES', 'LIMIT', 0, limit), {}
  for at = 1, #found, 2 do
    ids[#ids + 1] = found[at]
  end
  local reply = {time, #ids, tonumber(found[#found]) or 0, 0}
  local records = fetch(sound(ITEM, 'hash'), ids)
  for index, id in ipairs(ids) do
    local m = unpacked(records[index])
    local keep = m and keeps[m[QUEUE]] or {false, false, trash_kept}
    if m and (is_over(m, keep[1]) or is_old_trash(m, keep[3])) then
      reply[#reply + 1] = id
      reply[#reply + 1] = records[index]
    elseif m and is_over(m, keep[2]) and call('HEXISTS', sound(P .. 'result', 'hash'), id) == 1 then
      unset(P .. 'result', id)
      reply[4] = reply[4] + 1
    end
  end
  return reply
end

forget_keys()
local keeps = kept_for()
local reply = keeps and look(keeps) or {time, 0, 0, 0}
write()
return reply
