-- How much of a queue may be given now: what runs, how fast, and what its gate lets through. As core.meters counts.
-- Inputs:    room_of(queue, limits, most, time); spend(queue, limits, firsts, retries, time); opens_at(interval, burst, full_at)
--            limits is what stands in fourth place of a queue's settings: the most that run, the most that run
--            of one limit key, interval and burst of its rate, its capacity, its order, its gate; false for what is none
-- Outputs:   how many, and how many retries among them; from when on a meter gives one
-- Atomicity: reads and notes down.
-- Keys:      meters hash, queue -> when its rate is full again; gates hash, name -> version, interval, burst, share, cap,
--            floor, next_at, credit, floor_at; gate_bodies hash, name -> what its writer knows

local MOST_RUNNING, MOST_PER_KEY, RATE_INTERVAL, RATE_BURST, CAPACITY, ORDER, GATE = 1, 2, 3, 4, 5, 6, 7
local G_INTERVAL, G_BURST, G_SHARE, G_CAP, G_FLOOR, G_NEXT_AT, G_CREDIT, G_FLOOR_AT = 2, 3, 4, 5, 6, 7, 8, 9
local ONE_RETRY = 1000

local function meter_room(interval, burst, full_at, micros)
  local ahead = math.max(0, full_at - micros)
  local part = math.fmod(ahead, interval)
  return math.max(0, burst - (ahead - part) / interval - (part > 0 and 1 or 0))
end

local function spent(interval, full_at, micros, count)
  return count > 0 and math.max(full_at, micros) + count * interval or full_at
end

local function opens_at(interval, burst, full_at)
  return full_at - (burst - 1) * interval
end

local function meter_of(queue)
  return tonumber(call('HGET', sound(P .. 'meters', 'hash'), queue) or 0) or 0
end

local function gate_of(limits)
  return limits[GATE] ~= '' and list_of(call('HGET', sound(P .. 'gates', 'hash'), limits[GATE])) or nil
end

local function room_of(queue, limits, most, time)
  local micros, retries = time * 1000, math.huge
  if limits[MOST_RUNNING] then
    most = math.min(most, limits[MOST_RUNNING] - call('ZCARD', leased_key(queue)))
  end
  if limits[RATE_INTERVAL] then
    most = math.min(most, meter_room(limits[RATE_INTERVAL], limits[RATE_BURST], meter_of(queue), micros))
  end
  local gate = gate_of(limits)
  if gate and gate[G_INTERVAL] then
    most = math.min(most, meter_room(gate[G_INTERVAL], gate[G_BURST], gate[G_NEXT_AT], micros))
  elseif gate and gate[G_SHARE] then
    retries = math.floor(gate[G_CREDIT] / ONE_RETRY) + meter_room(gate[G_FLOOR], 1, gate[G_FLOOR_AT], micros)
  end
  return math.max(0, most), retries
end

local function spend_credit(gate, firsts, retries, micros)
  local paid = math.min(retries, math.floor(gate[G_CREDIT] / ONE_RETRY))
  gate[G_CREDIT] = math.min(gate[G_CAP], gate[G_CREDIT] - ONE_RETRY * paid + firsts * gate[G_SHARE])
  gate[G_FLOOR_AT] = spent(gate[G_FLOOR], gate[G_FLOOR_AT], micros, retries - paid)
end

-- So many were given.
local function spend(queue, limits, firsts, retries, time)
  local given, micros = firsts + retries, time * 1000
  if given == 0 then
    return
  end
  if limits[RATE_INTERVAL] then
    set(P .. 'meters', queue, string.format('%.0f', spent(limits[RATE_INTERVAL], meter_of(queue), micros, given)))
  end
  local gate = gate_of(limits)
  if gate and gate[G_INTERVAL] then
    gate[G_NEXT_AT] = spent(gate[G_INTERVAL], gate[G_NEXT_AT], micros, given)
  elseif gate and gate[G_SHARE] then
    spend_credit(gate, firsts, retries, micros)
  else
    return
  end
  set(P .. 'gates', limits[GATE], cmsgpack.pack(gate))
end
