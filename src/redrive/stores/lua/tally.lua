#!lua flags=no-writes
-- tally: counts per declared queue and per route. Every count is the size of the index in which the items lie.
-- Inputs:    "1" if rows of all members of families are wanted; or of which
-- Outputs:   now; how many open letters; route and open letters in turn; route and room in turn; then per queue its name,
--            settings, ready, leased, done, open, archived, trash, cancelled, held, parked, the earliest due time or nil,
--            and the meter of its rate
-- Atomicity: one read
-- Uses: levels

local function ready_of(queue)
  local count, oldest = 0, false
  for _, key in ipairs(ready_keys(queue)) do
    count = count + call('ZCARD', key)
    local due = tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if due and (not oldest or due < oldest) then
      oldest = due
    end
  end
  return count, oldest
end

-- How many of these a set has.
local function count_among(key, ids)
  local count = 0
  for first = 1, #ids, MOST do
    for _, score in ipairs(call('ZMSCORE', key, unpack(ids, first, math.min(first + MOST - 1, #ids)))) do
      count = count + (score and 1 or 0)
    end
  end
  return count
end

-- Of the held, those that an operator parked, and those behind the dead heads of parked lines; some may be both.
local function parked_of(queue)
  local count, ids = call('ZCARD', P .. 'parks:' .. queue), nil
  local some = count > 0
  for _, key in ipairs(call('ZRANGE', P .. 'parked:' .. queue, 0, -1)) do
    local followers = P .. 'followers:' .. queue .. '\0' .. key
    count = count + call('ZCARD', followers)
    if some then
      ids = ids or call('ZRANGE', P .. 'parks:' .. queue, 0, -1)
      count = count - count_among(followers, ids)
    end
  end
  return count
end

local reply = {
  now(), call('ZCARD', P .. 'letters:open'), call('ZRANGE', P .. 'routes', 0, -1, 'WITHSCORES'),
  call('HGETALL', P .. 'rooms'),
}
local named = {}
for index = 3, #ARGV do
  named[ARGV[index]] = true
end
local queues = call('HGETALL', P .. 'queues')
for index = 1, #queues, 2 do
  local queue = queues[index]
  local size = #reply
  if string.sub(queue, -2) == ':*' then
    reply[size + 1], reply[size + 2], reply[size + 11] = queue, queues[index + 1], 0
    for at, kind in ipairs({'ready', 'leased', 'done', 'open', 'archived', 'trash', 'cancelled', 'held'}) do
      reply[size + 2 + at] = kin.counted(queue, kind)
    end
    reply[size + 12], reply[size + 13] = false, 0
  elseif ARGV[2] == '1' or named[queue] or not kin.of(queue) then
  local ready, oldest = ready_of(queue)
  local parked = parked_of(queue)
  reply[size + 1], reply[size + 2], reply[size + 3] = queue, queues[index + 1], ready
  reply[size + 4] = call('ZCARD', P .. 'leased:' .. queue)
  reply[size + 5] = call('ZCARD', P .. 'ended:done:' .. queue)
  reply[size + 6] = call('ZCARD', P .. 'letters:q:open:' .. queue)
  reply[size + 7] = call('ZCARD', P .. 'letters:q:archived:' .. queue)
  reply[size + 8] = call('ZCARD', P .. 'letters:q:trash:' .. queue)
  reply[size + 9] = call('ZCARD', P .. 'ended:cancelled:' .. queue)
  reply[size + 10] = call('ZCARD', P .. 'held:' .. queue) - parked
  reply[size + 11], reply[size + 12] = parked, oldest
  reply[size + 13] = tonumber(call('HGET', P .. 'meters', queue) or 0) or 0
  end
end
return reply
