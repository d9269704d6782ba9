-- What lease needs besides the usual: suspects, limit keys, and items that are not where they should be.
-- Inputs:    leased_otherwise(id, record as it is kept, lane, rank, grant); first_suspect(lanes, time);
--            take_place(id, lane, limit key); named(id, lane)
-- Outputs:   the new record and its delivery, ASIDE if it has to wait for others of its limit key, nil if it is not to be
--            given; the lane, member and rank of the first suspect that may be given, and how many were set aside for it;
--            member and rank of an item if it is ready and has no hold, and whether it is a suspect
-- Atomicity: reads and notes down; what is set aside on the way to a suspect is written.

local MOST_ASIDE = 1000
local MOST_PER_KEY = 2
local ASIDE = 0

-- Whether nobody made something else of a key: it is known only here, where it is too late to stop.
local function fits(key)
  if not kinds[key] then
    local found = call('TYPE', key).ok
    if found ~= 'none' and found ~= 'zset' then
      return false
    end
    kinds[key] = true
  end
  return true
end

-- Whether an item has a limit key of which so many run already: until one of them ends, nobody has to look at it.
local function has_no_room(m, limits)
  local most = limits and limits[MOST_PER_KEY]
  return most and tied(m, LIMITED) and bonds().running_of(m[QUEUE], m[TERMS][LIMIT_KEY]) >= most
end

local function fits_limit_key(m)
  return not tied(m, LIMITED)
    or fits(bonds().slot_key(m[QUEUE])) and fits(bonds().aside_key(m[QUEUE], m[TERMS][LIMIT_KEY]))
end

-- A place under its limit key for an item that is leased now; false if there is none.
local function take_place(id, lane, limit_key)
  local bonds, most = bonds(), lane.limits and lane.limits[MOST_PER_KEY]
  if not fits(bonds.slot_key(lane.queue)) or most and bonds.running_of(lane.queue, limit_key) >= most then
    return false
  end
  bonds.take_slot(id, lane.queue, limit_key)
  return true
end

-- The same of the others: ASIDE if it has to wait for others of its limit key, nil if it is not to be given at all.
local function leased_otherwise(id, kept, lane, rank, grant)
  local m = unpacked(kept)
  if not m or m[STATE] ~= 'ready' or m[QUEUE] ~= lane.queue or (m[HOLD] or 0) > 0 then
    return nil
  elseif rank_of(m) ~= rank or not fits_limit_key(m) then
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
    bonds().take_slot(id, m[QUEUE], m[TERMS][LIMIT_KEY])
  end
  return lay(id, m), m[DELIVERIES]
end

local function first_due(lane, time)
  local first = nil
  for _, rank in ipairs(lane.suspect) do
    local rows = choosing().due_rows(lane.queue, rank, 1, time)
    if rows and (not first or choosing().comes_first(rows[1], first[1])) then
      first = rows
    end
  end
  return first and {first[1][3], first[1][4]}
end

local function named(id, lane)
  local m = load(id)
  if not m or m[STATE] ~= 'ready' or m[QUEUE] ~= lane.queue or (m[HOLD] or 0) > 0 then
    return nil
  end
  local rank = rank_of(m)
  return {place(m, id), rank}, math.floor(level_in(rank) / 6) >= lane.want[4] - 1
end

-- The first that may be given, and its lane. Those that wait for others of their limit key are set aside on the way.
local function first_suspect(lanes, time)
  local asides = 0
  for _, lane in ipairs(lanes) do
    local most, retries, family, settings = lane.want[2], math.huge, kin.of(lane.queue)
    if family then
      most = kin.room(family, settings, most)
    end
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
