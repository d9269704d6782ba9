#!lua flags=allow-oom
-- configure_route: how many open letters a route has room for.
-- Inputs:    the route; how many, or empty for no limit; the audit entry, if there is one: topic; meta; body
-- Outputs:   nil; or how many it has, if that is more: then nothing was changed
-- Atomicity: one script
-- Uses: entering

local route, capacity = ARGV[2], tonumber(ARGV[3])
local open = call('ZCARD', sound(P .. 'letters:r:open:' .. route, 'zset'))
if not capacity then
  unset(P .. 'rooms', route)
elseif open > capacity then
  return open
else
  set(P .. 'rooms', route, string.format('%.0f', capacity))
end
enter_audit(4)
write()
return nil
