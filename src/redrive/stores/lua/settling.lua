-- What settle is about, for the usual way (settle.lua) and for all others (ending.lua).
-- Inputs:    ARGV as settle.lua says
-- Outputs:   time, settlements; `others` and `follow_ups` to be filled; otherwise(place, verdict, current delivery);
--            tell_limited(queue) for a queue of which something ended
-- Atomicity: reads and notes down.

local DONE, READY, DEAD, CANCELLED = 1, 2, 3, 4
local ALREADY, GIVEN_AWAY, NO_SUCH_ITEM, KEPT, CANCELLED_INSTEAD = 1, 2, 3, 4, 5

local time = now()
local settlements = cmsgpack.unpack(ARGV[2])
local trimmed, others, follow_ups = {}, {}, {}

local function otherwise(index, verdict, current)
  local size = #others
  others[size + 1], others[size + 2], others[size + 3] = index, verdict, current
end

-- A queue that is limited has room again: whoever waits for it cannot know.
local limited = {}
local function tell_limited(queue)
  if limited[queue] == nil then
    local declared = declaration(queue)
    limited[queue] = declared and declared[4] and declared[4][1] and true or false
    local family, settings = kin.of(queue)
    if family and settings[4] and settings[4][1] then
      wake(family)
    end
  end
  if limited[queue] then
    wake(queue)
  end
end
