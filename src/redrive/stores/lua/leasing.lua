-- Who gets what: due order, suspects alone, and the same answer to the same nonce. For lease and for settle's `then`.
-- Inputs:    prepared(request) reads and checks all that give needs; the request is {worker, nonce, holding, wants, its key,
--            the id of the only item asked for or ''}, a want {queue, limit, ttl, max_crashes, retries or false, turn, share
--            or false, kinds or false}. give(prepared, time) comes after it, and may come after a write.
-- Outputs:   {2, a family that is not declared: nothing was given}, or {the sum of 1 if a suspect waits and 4 if members were
--            put off and others follow, id, record, payload, id, record, payload, …}
-- Atomicity: give writes, want by want; nothing in it can fail that prepared has not tried.

local DAY = 24 * 60 * 60 * 1000
local STALE_AT_ONCE = 8
local MOST_ASIDE = 1000
local ASIDE = 0
local asides = 0

local function in_list(list, value)
  for _, one in ipairs(list) do
    if one == value then
      return true
    end
  end
  return false
end

-- The ranks among its ready items, on both sides of the want's line. Nil for a queue that gives nothing; one whose item
-- is asked for by its id does.
local function lane(want, is_named)
  local queue, line = want[1], want[4] - 1
  if want[2] <= 0 and not is_named then
    return nil
  end
  local declared = list_of(call('HGET', sound(P .. 'queues', 'hash'), queue))
  if not declared or declared[1] and not is_named then
    return nil
  end
  local made = {want = want, queue = queue, limits = kin.limits(queue, declared[4]), plain = {}, suspect = {}}
  local levels = call('SMEMBERS', sound(P .. 'levels:' .. queue, 'set'))
  if not levels[1] or call('EXISTS', ready_key(queue, 0)) == 1 then
    levels[#levels + 1] = '0'
  end
  for _, rank in ipairs(levels) do
    local number, kind = level_in(rank), kind_in(rank)
    if not want[8] or in_list(want[8], kind) then
      local side = math.floor(number / 6) < line and made.plain or made.suspect
      side[#side + 1] = ranked(number, kind)
      sound(ready_key(queue, ranked(number, kind)), 'zset')
    end
  end
  sound(leased_key(queue), 'zset')
  if made.limits then
    sound(P .. 'asides:' .. queue, 'zset')
    sound(P .. 'held:' .. queue, 'zset')
    sound(P .. 'meters', 'hash')
    sound(P .. 'gates', 'hash')
  end
  return made
end

local function prepared(request)
  sound(P .. 'item', 'hash')
  sound(P .. 'body', 'hash')
  sound(P .. 'nonce', 'hash')
  sound(P .. 'alone', 'hash')
  for _, want in ipairs(request[4]) do
    if string.sub(want[1], -2) == ':*' then
      sound(P .. 'queues', 'hash')
      kin.of(string.sub(want[1], 1, -2) .. ' ')
    else
      lane(want, request[6] ~= '')
    end
  end
  return request
end

local function is_current(m, delivery)
  return m and m[STATE] == 'leased' and m[DELIVERIES] == delivery
end

-- Not even a worker's own mistake may put a neighbour beside a suspect.
local function holds_a_suspect(worker)
  local held = list_of(call('HGET', P .. 'alone', worker))
  if not held then
    return false
  end
  if is_current(load(held[1]), held[2]) then
    return true
  end
  unset(P .. 'alone', worker)
  return false
end

local function is_retry(level)
  return math.floor(level / 3) % 2 == 1
end

-- A ready item's record with one delivery more, and its number. Counted before it is given: a crash between here and the
-- handler is already in the books. Nil if it does not say that it is ready there, or if its limit key has no room.
local function leased(id, kept, lane, spot, grant)
  local queue = lane.queue
  local read, left, seq, its_queue, state, put_at, due_at, renewed_at, deliveries, attempt, errors, crashes, replays,
    last_chance, _, _, _, _, ended_at, omitted, letter, priority, hold, ties = pcall(
    values_of, kept or '', TERMS - 1, HEAD_SIZE
  )
  if not read or (left ~= -1) ~= (ties ~= nil) or state ~= 'ready' or its_queue ~= queue then
    return nil
  end
  local tried, kind = errors > 0 or crashes > 0 or replays > 0, ''
  if string.byte(kept, HEAD_SIZE) == ALL_FIELDS then
    local legible, _, _, its_kind = pcall(values_of, kept, 2, left)
    kind = legible and its_kind
  end
  local level = crashes * 6 + (tried and 3 or 0) + (priority or 0)
  if level ~= spot.level or kind ~= spot.kind or (hold or 0) > 0 then
    return nil
  end
  if ties and band(ties, LIMITED) ~= 0 then
    local legible, _, terms = pcall(values_of, kept, 1, left)
    if not legible or not lending().take_place(id, lane, terms[LIMIT_KEY]) then
      return nil
    end
  end
  deliveries = deliveries + 1
  if ties then
    return string.sub(kept, 1, HEAD_SIZE) .. packed(
      seq, queue, 'leased', put_at, due_at, renewed_at, deliveries, attempt + 1, errors, crashes, replays, last_chance,
      grant.alone, grant.worker, grant.time, grant.until_then, ended_at, omitted, letter, priority, hold, ties
    ) .. string.sub(kept, left + 1), deliveries
  end
  return HEAD .. packed(
    seq, queue, 'leased', put_at, due_at, renewed_at, deliveries, attempt + 1, errors, crashes, replays, last_chance,
    grant.alone, grant.worker, grant.time, grant.until_then, ended_at, omitted, letter
  ), deliveries
end

-- Gives what was chosen: members and their ranks in turn. How many were given that were never tried before, how many
-- others, and how many were set aside.
local function hand_over(given, lane, picks, grant)
  local queue, ids, size, spots = lane.queue, {}, #given.ids, {}
  local firsts, retries, aside = 0, 0, 0
  for at = 1, #picks, 2 do
    ids[#ids + 1] = id_at(picks[at])
  end
  local records, to = fetch(ITEM, ids), leased_key(queue)
  for index, id in ipairs(ids) do
    local member, rank = picks[index * 2 - 1], picks[index * 2]
    local spot = spots[rank]
    if not spot then
      local level = level_in(rank)
      spot = {key = ready_key(queue, rank), level = level, kind = kind_in(rank), retry = is_retry(level)}
      spots[rank] = spot
      if rank ~= 0 then
        emptied[spot.key] = {P .. 'levels:' .. queue, rank}
      end
    end
    -- What a set has and its item does not know of would be looked at for ever.
    remove(spot.key, member)
    -- Nearly every item makes this move, so it is written out: the same as lift, change and lay.
    local made, delivery = leased(id, records[index], lane, spot, grant)
    if made then
      add(to, grant.until_then, member)
      set(ITEM, id, made)
    else
      made, delivery = lending().leased_otherwise(id, records[index], lane, rank, grant)
    end
    if made == ASIDE then
      aside = aside + 1
    elseif made then
      size = size + 1
      given.ids[size], given.records[size], given.deliveries[size] = id, made, delivery
      if spot.retry then
        retries = retries + 1
      else
        firsts = firsts + 1
      end
    end
  end
  return firsts, retries, aside
end

-- How many may be given, and how many retries among them.
local function room_in(lane, time)
  local most, family, settings = lane.want[2], kin.of(lane.queue)
  if family then
    most = kin.room(family, settings, most)
  end
  if not lane.limits then
    return most, math.huge
  end
  return limits().room_of(lane.queue, lane.limits, most, time)
end

-- Members and their ranks in turn. Nearly always nothing that is due was tried before or has a priority, and all is of one
-- kind: then there is nothing to choose.
local function chosen(lane, most, retries, most_retries, turn, time)
  local queue, ranks = lane.queue, lane.plain
  local only = ranks[1]
  if #ranks ~= 1 or level_in(only) ~= 0 then
    return choosing().choose(queue, ranks, most, retries, most_retries, turn, lane.want[7], time)
  end
  local picks = {}
  for index, member in ipairs(call('ZRANGEBYSCORE', ready_key(queue, only), '-inf', time, 'LIMIT', 0, most)) do
    picks[index * 2 - 1], picks[index * 2] = member, only
  end
  return picks
end

-- In rounds: where some of those chosen are set aside, others are chosen in their stead.
local function serve(given, lane, grant, time)
  local want = lane.want
  local most, most_retries = room_in(lane, time)
  local count, tried = 0, 0
  while count < most do
    local allowed = want[5] and math.max(0, want[5] - tried)
    local picks = chosen(lane, most - count, allowed, most_retries - tried, want[6] + count, time)
    local firsts, retries, aside = hand_over(given, lane, picks, grant)
    count, tried, asides = count + firsts + retries, tried + retries, asides + aside
    -- The next round, and the next want, may be of the same queue.
    write()
    if aside == 0 or asides >= MOST_ASIDE then
      break
    end
  end
  if lane.limits then
    limits().spend(lane.queue, lane.limits, count - tried, tried, time)
    write()
  end
  return count, tried
end

-- Lanes of the members whose turn it is. What somebody made of their keys is known only here, where it is too late to stop.
local function member_lanes(want, lanes, time)
  local _, settings = kin.of(string.sub(want[1], 1, -2) .. ' ')
  if want[2] <= 0 or kin.room(want[1], settings, want[2]) == 0 then
    return
  end
  for _, queue in ipairs(families().turns(want[1], time)) do
    local read, made = pcall(lane, {queue, unpack(want, 2)})
    if read and made then
      made.of = want
      lanes[#lanes + 1] = made
    else
      families().look_again(queue, nil, time)
    end
  end
end

-- An equal portion for each member whose turn it is; what is left for those that have more.
local function serve_family(given, want, members, request, time)
  local _, settings = kin.of(string.sub(want[1], 1, -2) .. ' ')
  local limit, count, tried = kin.room(want[1], settings, want[2]), 0, 0
  while #members > 0 and count < limit do
    local share, more = math.ceil((limit - count) / #members), {}
    for _, lane in ipairs(members) do
      if count >= limit then
        break
      end
      local retries = want[5] and math.max(0, want[5] - tried)
      lane.want = {lane.queue, math.min(share, limit - count), want[3], want[4], retries, want[6] + count, want[7], want[8]}
      local grant = {worker = request[1], time = time, until_then = time + want[3], alone = false}
      local now_given, now_tried = serve(given, lane, grant, time)
      count, tried = count + now_given, tried + now_tried
      if families().look_again(lane.queue, lane, time) and now_given > 0 then
        more[#more + 1] = lane
      end
    end
    members = more
  end
end

-- Of workers that have not asked for a day: their names never come again.
local function forget_stale(time)
  local some = call('HRANDFIELD', P .. 'nonce', STALE_AT_ONCE, 'WITHVALUES')
  for index = 1, #some, 2 do
    local last = list_of(some[index + 1])
    if not last or last[2] < time - DAY then
      unset(P .. 'nonce', some[index])
      unset(P .. 'alone', some[index])
    end
  end
end

local function remember(request, given, time, is_new)
  local numbers = {}
  for index = 1, #given.ids do
    numbers[index * 2 - 1], numbers[index * 2] = given.ids[index], given.deliveries[index]
  end
  if is_new then
    forget_stale(time)
    write()
  end
  set(P .. 'nonce', request[5], cmsgpack.pack({request[2], time, numbers}))
end

local function nothing_yet()
  return {ids = {}, records = {}, deliveries = {}}
end

local function answer(given, suspects_due)
  local reply = {(suspects_due and 1 or 0) + (kin.more and 4 or 0)}
  local ids, records = given.ids, given.records
  local bodies = fetch(P .. 'body', ids)
  for index = 1, #ids do
    local at = index * 3
    reply[at - 1], reply[at], reply[at + 1] = ids[index], records[index], bodies[index]
  end
  return reply
end

-- As far as still held: the same delivery, and nobody took it over.
local function given_before(numbers)
  local given = nothing_yet()
  for index = 1, #numbers, 2 do
    local id = numbers[index]
    local kept = call('HGET', ITEM, id)
    if is_current(unpacked(kept), numbers[index + 1]) then
      local size = #given.ids + 1
      given.ids[size], given.records[size] = id, kept
    end
  end
  return answer(given, false)
end

local function open_lanes(request, time)
  local lanes = {}
  for _, want in ipairs(request[4]) do
    if string.sub(want[1], -2) == ':*' then
      member_lanes(want, lanes, time)
    else
      lanes[#lanes + 1] = lane(want, request[6] ~= '')
    end
  end
  return lanes
end

local function first_suspect(lanes, time)
  for _, lane in ipairs(lanes) do
    if #lane.suspect > 0 then
      local suspect, pick, aside = lending().first_suspect(lanes, time)
      asides = asides + aside
      return suspect, pick
    end
  end
  return nil
end

-- The first family of the request that is not declared.
local function undeclared(request)
  for _, want in ipairs(request[4]) do
    if string.sub(want[1], -2) == ':*' and not kin.of(string.sub(want[1], 1, -2) .. ' ') then
      return want[1]
    end
  end
end

-- The wants in their order; those of one family together.
local function serve_all(given, lanes, request, grant_of, time)
  local members = {}
  for index, lane in ipairs(lanes) do
    if not lane.of then
      serve(given, lane, grant_of(lane.want, false), time)
    else
      members[#members + 1] = lane
      local following = lanes[index + 1]
      if not following or following.of ~= lane.of then
        serve_family(given, lane.of, members, request, time)
        members = {}
      end
    end
  end
end

local function give_suspect(given, lane, pick, grant)
  local firsts, retries = hand_over(given, lane, pick, grant)
  if #given.ids > 0 then
    set(P .. 'alone', grant.worker, cmsgpack.pack({given.ids[1], given.deliveries[1]}))
    if lane.limits then
      -- It was in danger before: whatever it has behind it, it is paid as a retry.
      limits().spend(lane.queue, lane.limits, 0, firsts + retries, grant.time)
    end
  end
end

-- The item that is asked for by its id, due or not and beyond what its queue gives. True if it may be given only to a worker
-- that holds nothing.
local function give_named(given, request, lane, grant_of)
  local pick, is_suspect = lending().named(request[6], lane)
  if is_suspect and request[3] > 0 then
    return true
  elseif is_suspect then
    give_suspect(given, lane, pick, grant_of(lane.want, true))
  elseif pick then
    local grant = grant_of(lane.want, false)
    local firsts, retries = hand_over(given, lane, pick, grant)
    if lane.limits then
      limits().spend(lane.queue, lane.limits, firsts, retries, grant.time)
    end
  end
  return false
end

local function give(request, time)
  if undeclared(request) then
    return {2, undeclared(request)}
  end
  local before = list_of(call('HGET', P .. 'nonce', request[5]))
  if before and before[1] == request[2] then
    return given_before(before[3])
  end
  if holds_a_suspect(request[1]) then
    return {0}
  end
  local given, lanes = nothing_yet(), open_lanes(request, time)
  local function grant_of(want, alone)
    return {worker = request[1], time = time, until_then = time + want[3], alone = alone}
  end
  local suspect, pick, suspects_due
  if request[6] ~= '' then
    suspects_due = lanes[1] and give_named(given, request, lanes[1], grant_of)
  else
    suspect, pick = first_suspect(lanes, time)
    suspects_due = suspect and request[3] > 0
    if suspect and not suspects_due then
      give_suspect(given, suspect, pick, grant_of(suspect.want, true))
      if suspect.of then
        write()
        families().look_again(suspect.queue, suspect, time)
      end
    else
      serve_all(given, lanes, request, grant_of, time)
    end
  end
  if #given.ids > 0 then
    remember(request, given, time, not before)
  end
  write()
  return answer(given, suspects_due)
end
