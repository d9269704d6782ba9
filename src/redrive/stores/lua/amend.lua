#!lua flags=allow-oom
-- amend: moves items that nobody holds, as far as that is legal.
-- Inputs:    change; how many must exist, or empty; actor, reason, request id; delay; "1" if the next error is final;
--            where it lies afterwards, or empty; a map from what an item is to why the change is not legal then, or
--            empty; the audit entry: actor, reason and request id as JSON, and its body up to and from the changed ids;
--            then per item: id; id as JSON; the record it was judged by, or empty
-- Outputs:   per item 0 (changed), 1 (changed earlier by this request), 2 (does not exist), 3 (its record is damaged) or
--            what it is, in words, for which the map has a reason; or the number of those that exist if that is another; or nil, if an item that
--            could be changed is not what it was judged by: then nothing was changed
-- Atomicity: one script, with the acts in the items' histories and the audit entry
-- Uses: entering

local change, expect = ARGV[2], ARGV[3]
local actor, reason, request = ARGV[4], ARGV[5], ARGV[6]
local delay, last_chance, lies = tonumber(ARGV[7]), ARGV[8] == '1', ARGV[9]
local refusals = cmsgpack.unpack(ARGV[10])
local meta, head, tail = ARGV[11], ARGV[12], ARGV[13]
local at = now()

-- Acts on an item stand one behind the other, each after its length in 8 digits. Only what may hold the request id is
-- taken apart.
local function done_before(acts)
  if not acts or not string.find(acts, request, 1, true) then
    return false
  end
  local from = 1
  while from < #acts do
    local length = tonumber(string.sub(acts, from, from + 7))
    local deed = length and list_of(string.sub(acts, from + 8, from + 7 + length))
    if not deed then
      return false
    elseif deed[5] == request then
      return true
    end
    from = from + 8 + length
  end
  return false
end

local function replay(m)
  m[STATE], m[DUE_AT], m[RENEWED_AT] = 'ready', at + delay, at
  m[ATTEMPT], m[ERRORS], m[CRASHES] = 0, 0, 0
  m[REPLAYS], m[LAST_CHANCE] = m[REPLAYS] + 1, last_chance
  m[ENDED_AT], m[LETTER] = false, false
end

local function alter(id, m)
  lift(id, m)
  if change == 'replay' then
    replay(m)
    unset(P .. 'failure', id)
    unset(P .. 'result', id)
  elseif change == 'cancel' then
    m[STATE], m[ENDED_AT] = 'cancelled', at
  else
    m[LETTER][DISPOSITION] = lies
  end
  lay(id, m)
end

local ids = {}
for first = 14, #ARGV, 3 do
  ids[#ids + 1] = ARGV[first]
end
local records = fetch(sound(P .. 'item', 'hash'), ids)
local acts = fetch(sound(P .. 'deeds', 'hash'), ids)
local answers, there, changed, names = {}, 0, {}, {}
for index, id in ipairs(ids) do
  local m = unpacked(records[index])
  if not m then
    answers[index] = records[index] and 3 or 2
  else
    there = there + 1
    local kind = m[LETTER] and m[LETTER][DISPOSITION] or m[STATE]
    local judged_by = ARGV[13 + 3 * index]
    if done_before(acts[index]) then
      answers[index] = 1
    elseif refusals[kind] ~= '' then
      answers[index] = kind
    elseif judged_by ~= '' and judged_by ~= records[index] then
      return false
    else
      answers[index] = 0
      changed[#changed + 1] = {id, m, acts[index] or ''}
      names[#names + 1] = ARGV[12 + 3 * index]
    end
  end
end
if expect ~= '' and tonumber(expect) ~= there then
  return there
end
if #changed > 0 then
  local deed = cmsgpack.pack({at, change, actor, reason, request})
  deed = string.format('%08d', #deed) .. deed
  for _, one in ipairs(changed) do
    alter(one[1], one[2])
    set(P .. 'deeds', one[1], one[3] .. deed)
  end
  enter('audit', meta, head .. table.concat(names, ',') .. tail, at)
  write()
end
return answers
