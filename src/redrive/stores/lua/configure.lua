#!lua flags=allow-oom
-- configure: declares a queue and changes its settings.
-- Inputs:    the queue; its settings as they were read, or empty; as they are to be; "1" to begin its rate anew; "1" to free
--            those that its limit per key holds; its capacity, or empty
-- Outputs:   1; 0 if they are others by now; or what it holds, in a list, if that is more than the capacity. Then nothing was
--            changed
-- Atomicity: one script
-- Uses: ledger lines ties binding

local queue, before, after = ARGV[2], ARGV[3], ARGV[4]
local queues = sound(P .. 'queues', 'hash')
if (call('HGET', queues, queue) or '') ~= before then
  return 0
end
local capacity = tonumber(ARGV[7])
local fill = capacity and fill_of(queue)
if fill and fill > capacity then
  return {fill}
end
if before ~= after then
  set(queues, queue, after)
end
if ARGV[5] == '1' then
  unset(P .. 'meters', queue)
end
if ARGV[6] == '1' then
  for _, limit_key in ipairs(all_in(P .. 'asides:' .. queue)) do
    while let_next(queue, limit_key) do
    end
  end
end
wake(queue)
write()
return 1
