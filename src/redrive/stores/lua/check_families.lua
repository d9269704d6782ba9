#!lua flags=no-writes
-- check_families: whether the counters of families are the sums of those of their members, and leases will look at members
-- that have something to give. Reads the sizes of all indexes of all members at once, to be of one state.
-- Inputs:    none
-- Outputs:   family, counter, kept and there are in turn, where they differ; family and member in turn of those that would not
--            be looked at
-- Atomicity: one read
-- Uses: limits ranks opening declaring

local wrong, unseen = {}, {}
for _, family in ipairs(call('HKEYS', P .. 'queues')) do
  if string.sub(family, -2) == ':*' then
    local sums, running, givers = sums_of(family)
    for kind, count in pairs(sums) do
      local kept = kin.counted(family, kind)
      if kept ~= count then
        local size = #wrong
        wrong[size + 1], wrong[size + 2], wrong[size + 3], wrong[size + 4] = family, kind, kept, count
      end
    end
    for queue, count in pairs(running) do
      local kept = tonumber(call('ZSCORE', P .. 'running:' .. family, queue) or 0)
      if kept ~= count then
        local size = #wrong
        wrong[size + 1], wrong[size + 2], wrong[size + 3], wrong[size + 4] = family, queue, kept, count
      end
    end
    for _, queue in ipairs(givers) do
      if not call('ZSCORE', P .. 'turns:' .. family, queue) and not call('ZSCORE', P .. 'later:' .. family, queue) then
        unseen[#unseen + 1], unseen[#unseen + 2] = family, queue
      end
    end
  end
end
return {wrong, unseen}
