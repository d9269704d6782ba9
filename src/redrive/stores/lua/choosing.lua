-- In which order what is due is given, as core.lanes.choose says.
-- Inputs:    due_rows(queue, rank, limit, time); choose(queue, ranks, limit, retries, most_retries, turn, share, time),
--            retries and share false for no such line
-- Outputs:   members; members and their ranks in turn
-- Atomicity: reads.

local CYCLE = 20
local WHOLE = 1000
local SPARE = 8
local NORMAL, HIGH, LOW = 0, 1, 2
local USUAL = {HIGH, NORMAL, LOW}
local TURNS = {[CYCLE / 2 - 1] = {NORMAL, LOW, HIGH}, [CYCLE - 1] = {LOW, NORMAL, HIGH}}

local function is_retry(level)
  return math.floor(level / 3) % 2 == 1
end

-- The members of one level and kind that are due, in order, with their times; nil if there is none.
local function due_rows(queue, rank, limit, time)
  local found = call('ZRANGEBYSCORE', ready_key(queue, rank), '-inf', time, 'WITHSCORES', 'LIMIT', 0, limit)
  if not found[1] then
    return nil
  end
  local level = level_in(rank)
  local rows = {level = level, priority = level % 3, retry = is_retry(level), at = 1}
  for index = 1, #found, 2 do
    local member = found[index]
    rows[#rows + 1] = {tonumber(found[index + 1]), tonumber(string.sub(member, 1, 16)), member, rank}
  end
  return rows
end

local function comes_first(a, b)
  return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
end

-- The next rows of one set, where those that were read are used up. Nothing but `due` false tells that there are no more.
local function advance(part, queue, share, time)
  local rows = part.rows
  part.at = part.at + 2
  if not rows[part.at] and #rows == 2 * share then
    rows = call('ZRANGEBYSCORE', ready_key(queue, part.rank), '-inf', time, 'WITHSCORES', 'LIMIT', part.read, share)
    part.rows, part.read, part.at = rows, part.read + #rows / 2, 1
  end
  local member = rows[part.at]
  part.due = member and tonumber(rows[part.at + 1])
  part.seq = member and tonumber(string.sub(member, 1, 16))
end

-- Of several kinds of one level, together in due order: members and ranks in turn, and the times of the members. As
-- core.lanes.merged: a share of each is read first, and more only of those of which that was not enough.
local function in_order(queue, ranks, limit, time)
  local share = math.min(limit, math.floor(limit / #ranks) + SPARE)
  local parts, picks, dues, count = {}, {}, {}, 0
  for _, rank in ipairs(ranks) do
    local rows = call('ZRANGEBYSCORE', ready_key(queue, rank), '-inf', time, 'WITHSCORES', 'LIMIT', 0, share)
    local part = {rank = rank, rows = rows, read = #rows / 2, at = -1}
    advance(part, queue, share, time)
    if part.due then
      parts[#parts + 1] = part
    end
  end
  while count < limit and parts[1] do
    local place, best = 1, parts[1]
    for index = 2, #parts do
      local part = parts[index]
      if part.due < best.due or part.due == best.due and part.seq < best.seq then
        place, best = index, part
      end
    end
    count = count + 1
    picks[2 * count - 1], picks[2 * count], dues[count] = best.rows[best.at], best.rank, best.due
    advance(best, queue, share, time)
    if not best.due then
      table.remove(parts, place)
    end
  end
  return picks, dues
end

-- As due_rows, of several kinds of one level.
local function merged_rows(queue, ranks, limit, time)
  if #ranks == 1 then
    return due_rows(queue, ranks[1], limit, time)
  end
  local picks, dues = in_order(queue, ranks, limit, time)
  local level = level_in(ranks[1])
  local rows = {level = level, priority = level % 3, retry = is_retry(level), at = 1}
  for index, due in ipairs(dues) do
    local member = picks[2 * index - 1]
    rows[index] = {due, tonumber(string.sub(member, 1, 16)), member, picks[2 * index]}
  end
  return rows[1] and rows or nil
end

local function next_lane(lanes, turn, retry)
  for _, priority in ipairs(TURNS[turn % CYCLE] or USUAL) do
    local best = nil
    for _, rows in ipairs(lanes) do
      local row = rows.priority == priority and (retry or not rows.retry) and rows[rows.at]
      if row and (not best or comes_first(row, best[best.at])) then
        best = rows
      end
    end
    if best then
      return best
    end
  end
  return nil
end

-- Whether the lease with this number may go to a retry while first attempts wait. The turns of each priority are counted
-- for themselves.
local function may_retry(turn, share)
  local cycle, nth = math.floor(turn / CYCLE), turn % CYCLE
  local count = TURNS[nth] and cycle or cycle * (CYCLE - 2) + nth - (nth >= CYCLE / 2 and 1 or 0)
  return count * share % WHOLE + share >= WHOLE
end

local function choose_among(lanes, limit, retries, most_retries, turn, share)
  local picks, count, tried = {}, 0, 0
  for _, line in ipairs({retries and math.min(retries, most_retries) or most_retries, most_retries}) do
    while count < limit do
      local nth = turn + count
      local rows = next_lane(lanes, nth, tried < line and (not share or may_retry(nth, share)))
      if not rows then
        break
      end
      count = count + 1
      picks[count * 2 - 1], picks[count * 2] = rows[rows.at][3], rows[rows.at][4]
      rows.at = rows.at + 1
      tried = tried + (rows.retry and 1 or 0)
    end
    share = false
  end
  return picks
end

local function choose(queue, ranks, limit, retries, most_retries, turn, share, time)
  local lanes, alike = {}, {}
  for _, rank in ipairs(ranks) do
    local list = under(alike, level_in(rank))
    list[#list + 1] = rank
  end
  if alike[0] and #alike[0] == #ranks then
    -- Nothing was tried before or has a priority: the time alone decides.
    return (in_order(queue, ranks, limit, time))
  end
  for _, list in pairs(alike) do
    lanes[#lanes + 1] = merged_rows(queue, list, limit, time)
  end
  return choose_among(lanes, limit, retries, most_retries, turn, share)
end
