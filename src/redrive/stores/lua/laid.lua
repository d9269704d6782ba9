-- Whether an index has all that belongs in it. In a namespace of an earlier layout some are still being made.
-- Inputs:    is_laid(an index, without prefix)
-- Outputs:   whether it may be searched
-- Atomicity: reads.

local LAID_WITH = 3

local layout = nil
local function is_laid(name)
  if not string.find(name, '^letters:[ek]q:') then
    return true
  end
  layout = layout or tonumber(call('HGET', P .. 'boot', 'laid') or 0)
  return layout >= LAID_WITH
end
