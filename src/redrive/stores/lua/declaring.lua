-- A family of queues is declared, or counted anew: with all queues that have such a name.
-- Inputs:    sums_of(family); declare_family(family); recount_family(family). Needs limits.lua and opening.lua before it
-- Outputs:   the counters by kind, members by how many of each run, and those that may have something to give
-- Atomicity: sums_of reads; the others write at once.

local DISPOSITIONS = {'open', 'archived', 'trash'}

local function size_of(key)
  return call('TYPE', key).ok == 'zset' and call('ZCARD', key) or 0
end

local function may_give(queue, declared)
  local limits = declared and kin.limits(queue, declared[4])
  return declared and not declared[1] and not is_full(queue, limits) and when_due(queue, nil, limits) ~= nil
end

local function sums_of(family)
  local sums, running, givers = {}, {}, {}
  local head = string.sub(family, 1, -2)
  local function count(kind, by)
    sums[kind] = (sums[kind] or 0) + by
  end
  for _, queue in ipairs(call('HKEYS', P .. 'queues')) do
    if string.sub(queue, 1, #head) == head and queue ~= family then
      count('ready', size_of(P .. 'ready:0:' .. queue))
      for _, rank in ipairs(call('SMEMBERS', P .. 'levels:' .. queue)) do
        count('ready', size_of(ready_key(queue, rank)))
      end
      running[queue] = size_of(P .. 'leased:' .. queue)
      count('leased', running[queue])
      count('held', size_of(P .. 'held:' .. queue))
      count('done', size_of(P .. 'ended:done:' .. queue))
      count('cancelled', size_of(P .. 'ended:cancelled:' .. queue))
      for _, lies in ipairs(DISPOSITIONS) do
        count(lies, size_of(P .. 'letters:q:' .. lies .. ':' .. queue))
      end
      if may_give(queue, list_of(call('HGET', P .. 'queues', queue))) then
        givers[#givers + 1] = queue
      end
    end
  end
  return sums, running, givers
end

local function recount_family(family)
  local sums, running, givers = sums_of(family)
  for kind, count in pairs(sums) do
    call('HSET', P .. 'families', family .. '\0' .. kind, count)
  end
  call('DEL', P .. 'running:' .. family)
  for queue, count in pairs(running) do
    if count > 0 then
      call('ZADD', P .. 'running:' .. family, count, queue)
    end
  end
  for _, queue in ipairs(givers) do
    kin.lower(queue)
  end
end

local function declare_family(family)
  sound(P .. 'families', 'hash')
  if call('HSETNX', sound(P .. 'queues', 'hash'), family, cmsgpack.pack({false, '', ''})) == 1 then
    kin.known[family] = nil
    recount_family(family)
  end
end
