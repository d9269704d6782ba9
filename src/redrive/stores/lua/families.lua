-- Families of queues (core.families): which members a lease looks at.
-- Inputs:    turns(family, time); look_again(queue, lane, time). Needs limits.lua and opening.lua before it
-- Outputs:   the members to look at now; whether the lane has something to give now. kin.more: they were as many as may be
--            looked at, and some of them were put off
-- Atomicity: writes at once, and fails for nothing that kin.of has not tried. Every write of a script that may make something of
--            a member leasable lowers it (kin.lower); only what is here puts it off or takes it away.

local VISITS = 64
local LOOK_AGAIN = 1000
-- Those whose time has come stand behind those that wait already.
local function turns(family, time)
  for _, queue in ipairs(call('ZRANGEBYSCORE', P .. 'later:' .. family, '-inf', time, 'LIMIT', 0, VISITS)) do
    kin.lower(queue)
  end
  local found = call('ZRANGE', P .. 'turns:' .. family, 0, VISITS - 1)
  kin.is_full = kin.is_full or #found == VISITS
  return found
end

-- Its retries wait for a budget that leases of other queues fill.
local function shares_budget(queue, limits)
  local gate = limits and limits[GATE] ~= queue and gate_of(limits)
  return gate and not gate[G_INTERVAL] and gate[G_SHARE]
end

-- After a lease looked at a member; `lane` nil: it is paused or not there.
local function look_again(queue, lane, time)
  local family = kin.of(queue)
  local limits = lane and lane.limits
  local when = lane and not is_full(queue, limits) and when_due(queue, nil, limits) or nil
  call('ZREM', P .. 'turns:' .. family, queue)
  call('ZREM', P .. 'later:' .. family, queue)
  if when and when > time then
    when = shares_budget(queue, limits) and math.min(when, time + LOOK_AGAIN) or when
    call('ZADD', P .. 'later:' .. family, string.format('%.0f', when), queue)
  elseif when then
    kin.lower(queue)
  end
  local has_more = when and when <= time
  kin.more = kin.more or kin.is_full and not has_more
  return has_more
end
