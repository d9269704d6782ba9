#!lua flags=allow-oom
-- configure: declares a queue and changes its settings.
-- Inputs:    the queue; its settings as they were read, or empty; as they are to be; "1" to begin its rate anew; "1" to free
--            those that its limit per key holds; its capacity, or empty; the audit entry, if there is one: topic; meta; body
-- Outputs:   1; 0 if they are others by now; or what it holds, in a list, if that is more than the capacity. Then nothing was
--            changed
-- Atomicity: one script
-- Uses: ledger lines ties binding entering declaring(limits ranks opening declaring)

local queue, before, after = ARGV[2], ARGV[3], ARGV[4]
local queues = sound(P .. 'queues', 'hash')
if (call('HGET', queues, queue) or '') ~= before then
  return 0
end
local is_family = string.sub(queue, -2) == ':*'
if is_family then
  declaring().declare_family(queue)
end
local function gate_in(kept)
  local limits = (list_of(kept) or {})[4]
  return limits and limits[7] or ''
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
  local freed = {queue}
  if is_family then
    freed = {}
    for _, name in ipairs(call('HKEYS', queues)) do
      if kin.of(name) == queue then
        freed[#freed + 1] = name
      end
    end
  end
  for _, name in ipairs(freed) do
    for _, limit_key in ipairs(all_in(P .. 'asides:' .. name)) do
      while let_next(name, limit_key) do
      end
    end
  end
end
wake(queue)
enter_audit(8)
write()
if gate_in(before) ~= gate_in(after) then
  call('SREM', P .. 'behind:' .. gate_in(before), queue)
  if gate_in(after) ~= '' then
    call('SADD', P .. 'behind:' .. gate_in(after), queue)
  end
end
if is_family then
  kin.lower_all(queue)
end
return 1
