-- What people did with an item: acts stand one behind the other, each after its length in 8 digits.
-- Inputs:    each_deed(the acts as they are kept, or false; see), where see(time, change, actor, reason, request id, as a list)
--            gives true to stop; deed_of(time, change, actor, reason, request id)
-- Outputs:   whether it was stopped; an act as it is kept
-- Atomicity: none

local function each_deed(acts, see)
  local from = 1
  while acts and from < #acts do
    local length = tonumber(string.sub(acts, from, from + 7))
    local deed = length and list_of(string.sub(acts, from + 8, from + 7 + length))
    if not deed then
      return false
    elseif see(deed) then
      return true
    end
    from = from + 8 + length
  end
  return false
end

local function deed_of(...)
  local deed = cmsgpack.pack({...})
  return string.format('%08d', #deed) .. deed
end
