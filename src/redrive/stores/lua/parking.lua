-- Whether an item waits behind the dead head of a parked line, for those who show items.
-- Inputs:    is_parked(id, record as it is kept)
-- Outputs:   true or false
-- Atomicity: reads.

local FLOWING, PARKED = 0, 2
local status_of = {}

local function status_in(queue, key)
  local name = queue .. '\0' .. key
  if status_of[name] == nil then
    local line = list_of(call('HGET', P .. 'lines:' .. queue, key))
    status_of[name] = line and line[3] or FLOWING
  end
  return status_of[name]
end

local SHORT = string.byte(HEAD, HEAD_SIZE)
local function is_parked(id, kept)
  if not kept or string.byte(kept, HEAD_SIZE) == SHORT then
    return false
  end
  local m = unpacked(kept)
  if not m or m[STATE] ~= 'ready' or (m[HOLD] or 0) == 0 or m[HOLD] == HELD_PARKED or not tied(m, ORDERED) then
    return false
  end
  local key = m[TERMS][ORDER_KEY]
  return status_in(m[QUEUE], key) == PARKED and call('ZSCORE', P .. 'followers:' .. m[QUEUE] .. '\0' .. key, id) and true or false
end
