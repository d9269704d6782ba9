#!lua flags=no-writes
-- tally: counts per declared queue. Every count is the size of the index in which the items lie.
-- Inputs:    none
-- Outputs:   now; then per queue its name, settings, ready, leased, done, open, archived, trash, cancelled, and the
--            earliest due time or nil
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

local reply = {now()}
local queues = call('HGETALL', P .. 'queues')
for index = 1, #queues, 2 do
  local queue = queues[index]
  local size = #reply
  local ready, oldest = ready_of(queue)
  reply[size + 1], reply[size + 2], reply[size + 3] = queue, queues[index + 1], ready
  reply[size + 4] = call('ZCARD', P .. 'leased:' .. queue)
  reply[size + 5] = call('ZCARD', P .. 'ended:done:' .. queue)
  reply[size + 6] = call('ZCARD', P .. 'letters:q:open:' .. queue)
  reply[size + 7] = call('ZCARD', P .. 'letters:q:archived:' .. queue)
  reply[size + 8] = call('ZCARD', P .. 'letters:q:trash:' .. queue)
  reply[size + 9] = call('ZCARD', P .. 'ended:cancelled:' .. queue)
  reply[size + 10] = oldest
end
return reply
