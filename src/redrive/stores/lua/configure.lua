#!lua flags=allow-oom
-- configure: declares a queue and changes its settings.
-- Inputs:    the queue; "1" to pause, "0" to go on, empty to leave it as it is; by whom; why
-- Outputs:   none
-- Atomicity: one script

local queue, paused, by, reason = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local queues = sound(P .. 'queues', 'hash')
if paused == '1' then
  set(queues, queue, cmsgpack.pack({true, by, reason}))
elseif paused == '0' then
  set(queues, queue, cmsgpack.pack({false, '', ''}))
  wake(queue)
elseif call('HEXISTS', queues, queue) == 0 then
  set(queues, queue, cmsgpack.pack({false, '', ''}))
end
write()
