-- What lease needs besides the usual: suspects, limit keys, and items that are not where they should be.
-- Inputs:    leased_otherwise(id, record as it is kept, lane, level, grant); first_suspect(lanes, time)
-- Outputs:   the new record and its delivery, ASIDE if it has to wait for others of its limit key, nil if it is not to be
--            given; the lane, member and level of the first suspect that may be given, and how many were set aside for it
-- Atomicity: reads and notes down; what is set aside on the way to a suspect is written.

local MOST_ASIDE = 1000
local MOST_PER_KEY = 2
local ASIDE = 0

-- Whether nobody made something else of the sets of its limit key: they are known only here, where it is too late to stop.
local function fits_limit_key(m, most)
  if not tied(m, LIMITED) then
    return true
  end
  local keys = {bonds().slot_key(m)}
  if most then
    keys[2] = bonds().aside_key(m[QUEUE], m[TERMS][LIMIT_KEY])
  end
  for _, key in ipairs(keys) do
    local found = kinds[key] or call('TYPE', key).ok
    if found ~= true and found ~= 'none' and found ~= 'zset' then
      return false
    end
    kinds[key] = true
  end
  return true
end

-- Whether an item has a limit key of which so many run already: until one of them ends, nobody has to look at it.
local function has_no_room(m, limits)
  local most = limits and limits[MOST_PER_KEY]
  return most and tied(m, LIMITED) and bonds().count_in(bonds().slot_key(m)) >= most
end

-- The same of the others: ASIDE if it has to wait for others of its limit key, nil if it is not to be given at all.
local function leased_otherwise(id, kept, lane, level, grant)
  local m = unpacked(kept)
  if not m or m[STATE] ~= 'ready' or m[QUEUE] ~= lane.queue or (m[HOLD] or 0) > 0 then
    return nil
  elseif level_of(m) ~= level or not fits_limit_key(m, lane.limits and lane.limits[MOST_PER_KEY]) then
    -- It goes, or stays, where it belongs.
    shares(id, m, add)
    return nil
  end
  lift(id, m)
  if has_no_room(m, lane.limits) then
    bonds().set_aside(id, m)
    lay(id, m)
    return ASIDE
  end
  m[STATE], m[DELIVERIES], m[ATTEMPT], m[ALONE] = 'leased', m[DELIVERIES] + 1, m[ATTEMPT] + 1, grant.alone
  m[WORKER], m[LEASED_AT], m[LEASE_UNTIL] = grant.worker, grant.time, grant.until_then
  if tied(m, LIMITED) then
    bonds().enlist(bonds().slot_key(m), m[SEQ], id)
  end
  return lay(id, m), m[DELIVERIES]
end

local function first_due(lane, time)
  local first = nil
  for _, level in ipairs(lane.suspect) do
    local rows = choosing().due_rows(lane.queue, level, 1, time)
    if rows and (not first or choosing().comes_first(rows[1], first[1])) then
      first = rows
    end
  end
  return first and {first[1][3], first.level}
end

-- The first that may be given, and its lane. Those that wait for others of their limit key are set aside on the way.
local function first_suspect(lanes, time)
  local asides = 0
  for _, lane in ipairs(lanes) do
    local most, retries = lane.want[2], math.huge
    if lane.limits then
      most, retries = limits().room_of(lane.queue, lane.limits, most, time)
    end
    while #lane.suspect > 0 and most >= 1 and retries >= 1 and asides < MOST_ASIDE do
      local pick = first_due(lane, time)
      if not pick then
        break
      end
      local id = id_at(pick[1])
      local m = lane.limits and lane.limits[MOST_PER_KEY] and load(id)
      if not m or not has_no_room(m, lane.limits) then
        return lane, pick, asides
      end
      lift(id, m)
      bonds().set_aside(id, m)
      lay(id, m)
      write()
      asides = asides + 1
    end
  end
  return nil, nil, asides
end
