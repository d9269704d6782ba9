-- How a lease ends in all ways but the usual one: with a result or evidence, ready again, dead, cancelled, or bound to others.
-- Inputs:    judge(place, settlement, record as it is kept); untie(id, record) for one that has ended; settle_all()
-- Outputs:   none
-- Atomicity: reads and notes down.

local FIRST_ATTEMPTS, MOST_ATTEMPTS = 20, 200

local function body(number)
  return ARGV[number + 3]
end

local function charge(m, at)
  if at < 0 then
    m[-at] = m[-at] - 1
  else
    m[at] = m[at] + 1
  end
end

local function note_attempt(id, m, number)
  local key = P .. 'attempts:' .. id
  push(key, body(number))
  -- An item has at most as many attempts as deliveries.
  if m[DELIVERIES] > MOST_ATTEMPTS and call('LLEN', key) >= MOST_ATTEMPTS then
    m[OMITTED] = m[OMITTED] + 1
    trimmed[#trimmed + 1] = key
  end
end

local function follow(entries)
  for _, entry in ipairs(entries) do
    entry[4] = body(entry[4])
    follow_ups[#follow_ups + 1] = entry
  end
end

-- Whether a route has room for one more, counting those that it got just now.
local rooms = {}
local function has_room(route)
  if route == '' then
    return true
  end
  if not rooms[route] then
    local capacity = tonumber(call('HGET', sound(P .. 'rooms', 'hash'), route) or '')
    rooms[route] = capacity and capacity - call('ZCARD', sound(P .. 'letters:r:open:' .. route, 'zset')) or math.huge
  end
  rooms[route] = rooms[route] - 1
  return rooms[route] >= 0
end

-- Whoever was asked to cancel never becomes ready again.
local function ready_again(m, delay)
  if tied(m, CANCEL) then
    m[STATE], m[ENDED_AT] = 'cancelled', time
    return CANCELLED_INSTEAD
  end
  m[STATE], m[DUE_AT] = 'ready', time + delay
  return nil
end

local ends = {
  [DONE] = function(id, m, one)
    m[STATE], m[ENDED_AT] = 'done', time
    if one[6] > 0 then
      check_sealed(m[QUEUE], body(one[6]))
      set(P .. 'result', id, body(one[6]))
    end
  end,
  [READY] = function(_, m, one)
    charge(m, one[7])
    return ready_again(m, one[6])
  end,
  [DEAD] = function(id, m, one)
    charge(m, one[7])
    if not has_room(one[12]) then
      return ready_again(m, one[13]) or KEPT
    end
    m[STATE], m[ENDED_AT] = 'dead', time
    m[LETTER] = {one[6], time, 'open', one[9], one[10], one[11], one[12]}
    set(P .. 'failure', id, body(one[8]))
    return nil
  end,
  [CANCELLED] = function(_, m)
    m[STATE], m[ENDED_AT] = 'cancelled', time
  end,
}

-- Of an item that is bound to others: its place under its limit key, and all that waits for its end.
local function untie(id, m)
  -- Who is done waits for nobody.
  if m[TIES] == 0 or (m[TIES] == WAITS and m[STATE] == 'done') then
    return
  end
  local bonds = bonds()
  if tied(m, LIMITED) then
    bonds.leave_slot(id, m[QUEUE], m[TERMS][LIMIT_KEY])
    bonds.vacate(m)
  end
  if m[STATE] ~= 'ready' then
    bonds.ended(id, m)
  end
  if tied(m, CANCEL) and m[STATE] ~= 'cancelled' then
    m[TIES], m[TERMS][CANCELLED_BY] = band(m[TIES], bit.bnot(CANCEL)), ''
  end
end

local function settle(m, one, index)
  local id = one[1]
  local wide = m[TIES] ~= nil
  if not wide then
    lift(id, m)
  elseif not touched[id] then
    adopt(id, m)
  end
  m[LEASE_UNTIL], m[ALONE] = false, false
  local verdict = ends[one[3]](id, m, one)
  if verdict then
    otherwise(index, verdict, 0)
  end
  if one[4] > 0 then
    note_attempt(id, m, one[4])
  end
  if wide then
    untie(id, m)
  else
    lay(id, m)
  end
  tell_limited(m[QUEUE])
  -- One that was kept, or cancelled instead, has not ended as it says.
  if one[5] and not verdict then
    follow(one[5])
  end
end

local judged = {}
local function judge(index, one, kept)
  local id = one[1]
  -- The same record for a second settlement of the item.
  local m = judged[id] or touched[id] or unpacked(kept)
  if not m then
    otherwise(index, NO_SUCH_ITEM, 0)
  elseif m[DELIVERIES] ~= one[2] then
    otherwise(index, GIVEN_AWAY, m[DELIVERIES])
  elseif m[STATE] ~= 'leased' then
    otherwise(index, ALREADY, 0)
  else
    judged[id] = m
    settle(m, one, index)
  end
end

local function settle_all()
  local ids = {}
  for index, one in ipairs(settlements) do
    ids[index] = one[1]
  end
  local records = fetch(sound(ITEM, 'hash'), ids)
  for index, one in ipairs(settlements) do
    judge(index, one, records[index])
  end
end
