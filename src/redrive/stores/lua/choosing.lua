-- In which order what is due is given, as core.lanes.choose says.
-- Inputs:    due_rows(queue, level, limit, time); choose(queue, levels, limit, retries, most_retries, turn, time), retries
--            false for no such line
-- Outputs:   members; members and their levels in turn
-- Atomicity: reads.

local CYCLE = 20
local NORMAL, HIGH, LOW = 0, 1, 2
local USUAL = {HIGH, NORMAL, LOW}
local TURNS = {[CYCLE / 2 - 1] = {NORMAL, LOW, HIGH}, [CYCLE - 1] = {LOW, NORMAL, HIGH}}

local function is_retry(level)
  return math.floor(level / 3) % 2 == 1
end

-- The members of one level that are due, in order, with their times; nil if there is none.
local function due_rows(queue, level, limit, time)
  local found = call('ZRANGEBYSCORE', ready_key(queue, level), '-inf', time, 'WITHSCORES', 'LIMIT', 0, limit)
  if not found[1] then
    return nil
  end
  local rows = {level = level, priority = level % 3, retry = is_retry(level), at = 1}
  for index = 1, #found, 2 do
    local member = found[index]
    rows[#rows + 1] = {tonumber(found[index + 1]), tonumber(string.sub(member, 1, 16)), member}
  end
  return rows
end

local function comes_first(a, b)
  return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
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

local function choose_among(lanes, limit, retries, most_retries, turn)
  local picks, count, tried = {}, 0, 0
  for _, line in ipairs({retries and math.min(retries, most_retries) or most_retries, most_retries}) do
    while count < limit do
      local rows = next_lane(lanes, turn + count, tried < line)
      if not rows then
        break
      end
      count = count + 1
      picks[count * 2 - 1], picks[count * 2] = rows[rows.at][3], rows.level
      rows.at = rows.at + 1
      tried = tried + (rows.retry and 1 or 0)
    end
  end
  return picks
end

local function choose(queue, levels, limit, retries, most_retries, turn, time)
  local lanes = {}
  for _, level in ipairs(levels) do
    lanes[#lanes + 1] = due_rows(queue, level, limit, time)
  end
  return choose_among(lanes, limit, retries, most_retries, turn)
end
