#!lua flags=allow-oom
-- amend: moves items that nobody holds, as far as that is legal.
-- Inputs:    change; how many must exist, or empty; actor, reason, request id; delay; "1" if the next error is final;
--            where it lies afterwards, or empty; "1" to replay although another has its dedupe key, and to wait for nobody; "1" if
--            only ready items are meant; a map from what an item is to 1 if the change is not legal then,
--            `held` being a letter that somebody works on, or 0; a table with the queue to which it goes, or empty, the tags to
--            add and to remove, how many it may have (most), its policy, whether its counters begin anew (reset), and of the
--            letter of an expired item the reason, cause, class without its module, category and failure (expired), the label of
--            parked items, the revision that an edit is of, or false, and how many there may be (most_edits), the replay
--            for which letters are to be reserved (replay) and for which they must be (reserved), or empty; the audit
--            entry: actor, reason and request id as JSON, and its body up to and from the changed ids; the payload of an edit;
--            then per item: id; id as JSON; the record it was judged by, or empty
-- Outputs:   per item 0 (changed), 1 (changed earlier so by this request), 2 (does not exist), 3 (its record is damaged), 4
--            (it keeps nothing back), 5 (it was leased meanwhile), 6 (it keeps others back), 7 (it is not parked), 8 (it is
--            parked), a list: 'twin' and the item that has its dedupe key, 'vain' or 'unknown' and what it waits for, 'there' and the queue in which it is, 'bound'
--            and the queue in which others were put to wait for it, 'tags' and how many it would have, 'held' and by whom, 'recall'
--            and why it is not recalled, 'revision' and the one that it has; or what it is, in words, for which the map has 1;
--            or the number of those that exist if that is another; or nil, if an item that could be changed is not what it
--            was judged by: then nothing was changed
-- Atomicity: one script, with the acts in the items' histories and the audit entry
-- Uses: deeds tags ledger lines ties binding entering recall

local change, expect = ARGV[2], ARGV[3]
local actor, reason, request = ARGV[4], ARGV[5], ARGV[6]
local delay, last_chance, lies = tonumber(ARGV[7]), ARGV[8] == '1', ARGV[9]
local force, only_ready, refusals = ARGV[10] == '1', ARGV[11] == '1', cmsgpack.unpack(ARGV[12])
-- One table: a script has at most 200 local variables.
local how = cmsgpack.unpack(ARGV[13])
local meta, head, tail = ARGV[14], ARGV[15], ARGV[16]
local FIRST_ITEM = 18
local at = now()

-- Only what may hold the request id is taken apart.
local function done_before(acts)
  return acts and string.find(acts, request, 1, true) and each_deed(acts, function(deed)
    return deed[5] == request and deed[2] == change
  end)
end

local function begin_anew(m)
  m[RENEWED_AT], m[ATTEMPT], m[ERRORS], m[CRASHES], m[LAST_CHANCE] = at, 0, 0, 0, last_chance
end

local function replay(m)
  begin_anew(m)
  m[STATE], m[DUE_AT], m[REPLAYS] = 'ready', at + delay, m[REPLAYS] + 1
  m[ENDED_AT], m[LETTER] = false, false
end

-- The line in which it stands, if it has an order key.
local function its_line(m)
  return tied(m, ORDERED) and line_of_item(m) or nil
end

local last_number
local function next_number()
  last_number = (last_number or tonumber(call('HGET', sound(P .. 'sequence', 'hash'), 'item') or 0)) + 1
  set(P .. 'sequence', 'item', string.format('%.0f', last_number))
  return last_number
end

-- A head that waits for others lets go first who has a place before it: it may be what it waits for.
local function give_way(line)
  local head, first = take(line.head), first_in(line.followers)
  local is_waiting = head and (head[HOLD] == HELD_AFTER or head[HOLD] == HELD_PARKED and count_in(P .. 'waits:' .. line.head) > 0)
  local its = first and is_waiting and take(first)
  if its and its[TERMS][PLACE] < head[TERMS][PLACE] then
    delist(line.followers, first)
    enlist(line.followers, head[TERMS][PLACE], line.head)
    lead(line, first, its)
    hold_again(first, its)
  end
end

-- A dead head goes on at its place, and so does what others were ever to wait for: behind those who wait for it, now or when
-- they are replayed as well, it would be waited for in a ring. Everything else goes to the tail. Whatever it waited for and
-- is not done is waited for again.
local function replay_bound(id, m)
  local line = its_line(m)
  if line and line.gap == id then
    line.gap = ''
  end
  if line and line.head == id then
    line.status = FLOWING
    lead(line, id, m)
  elseif line and tied(m, AWAITED) then
    rejoin(id, m)
  elseif line then
    join(id, m, next_number())
  end
  if tied(m, WAITS) and not force then
    await_all(id, m)
  end
  hold_again(id, m)
  if line then
    give_way(line)
  end
end

local function let_pass(id, m, gap)
  local line = its_line(m)
  if line and line.gap == id then
    line.gap = ''
  end
  if line and line.head == id then
    if gap then
      line.gap = id
    end
    local new_head, its = advance(line, m[TERMS][PLACE])
    if new_head then
      hold_again(new_head, its)
    end
  end
end

local function end_waiting(id, m, state)
  if not m[TIES] then
    m[STATE], m[ENDED_AT] = state, at
    return
  end
  if tied(m, LIMITED) and m[HOLD] == 0 then
    -- It may be the one to which the last free place was passed.
    vacate(m)
  end
  end_ready(id, m, state, at)
end

local function cancel(id, m)
  if m[STATE] == 'leased' then
    terms_of(m)[CANCELLED_BY] = actor .. ': ' .. reason
    m[TIES] = bor(m[TIES], CANCEL)
  else
    end_waiting(id, m, 'cancelled')
  end
end

local function expire(id, m)
  local why, cause, error_short, category, failure = unpack(how.expired)
  end_waiting(id, m, 'dead')
  m[LETTER] = {why, at, 'open', cause, error_short, category, ''}
  set(P .. 'failure', id, failure)
end

-- Out of its line, where nobody waits behind it; in another one its old place would mean nothing.
local function move(id, m)
  let_pass(id, m, false)
  m[QUEUE] = how.queue
  if tied(m, ORDERED) then
    m[TERMS][PLACE] = next_number()
  end
end

-- In one table, for the same reason as above.
local acts_on = {IS_PARKED = 8}

-- Its terms with all fields up to what describes it.
function acts_on.described(m)
  local terms = terms_of(m)
  terms[TAGS] = terms[TAGS] or {}
  terms[DESCRIBED] = terms[DESCRIBED] or {0, '', {}, 0}
  return terms
end

-- What it waits for besides is found again when it is unparked.
function acts_on.park(id, m)
  local terms, hold = acts_on.described(m), m[HOLD]
  if hold == HELD_LIMIT then
    leave_aside(id, m)
  elseif hold == 0 and tied(m, LIMITED) then
    -- It may be the one to which the last free place was passed.
    vacate(m)
  end
  m[HOLD], m[TIES], terms[PARK_LABEL] = HELD_PARKED, bor(m[TIES], PARKED_ITEM), how.label
end

function acts_on.unpark(id, m)
  m[TIES] = band(m[TIES], bit.bnot(PARKED_ITEM))
  hold_again(id, m)
end

function acts_on.revision_of(m)
  return m[TERMS] and m[TERMS][DESCRIBED] and m[TERMS][DESCRIBED][REVISION] or 0
end

-- As sealing.lua does, for which there is no variable left.
function acts_on.check_sealed(queue, body)
  local declared = list_of(call('HGET', sound(P .. 'queues', 'hash'), queue))
  if declared and declared[9] and string.byte(body) ~= 2 then
    refuse('ENCRYPT ' .. string.gsub(queue, '.', function(char) return string.format('%02x', string.byte(char)) end))
  end
end

-- The payload before it is kept as it is, damaged or not.
function acts_on.edit(id, m)
  acts_on.check_sealed(m[QUEUE], ARGV[17])
  local terms, number = acts_on.described(m), acts_on.revision_of(m)
  local about = cmsgpack.pack({number, at, actor, reason})
  local before = call('HGET', sound(P .. 'body', 'hash'), id) or ''
  push(P .. 'revisions:' .. id, string.format('%08d', #about) .. about .. before)
  set(P .. 'body', id, ARGV[17])
  terms[DESCRIBED][REVISION], terms[ON_DEAD] = number + 1, terms[ON_DEAD] or 'wait'
end

function acts_on.says_something(terms)
  local about = terms[DESCRIBED]
  return about and (about[1] ~= 0 or about[2] ~= '' or #about[3] > 0 or about[REVISION] > 0)
end

-- Terms that say nothing are marked as not given.
local function set_policy(m)
  local terms = terms_of(m)
  local is_bound = terms[ORDER_KEY] ~= '' or terms[LIMIT_KEY] ~= '' or terms[SCOPE] or terms[AFTER] or terms[ON_DEAD] == 'die'
    or acts_on.says_something(terms)
  terms[POLICY] = how.policy
  terms[ON_DEAD] = (is_bound or how.policy ~= '') and (terms[ON_DEAD] or 'wait')
end

local function alter(id, m)
  if change == 'note' then
    return
  end
  m = touched[id] or adopt(id, m)
  if m[LETTER] and m[LEASE_UNTIL] and change ~= 'tag' then
    -- Whoever had it where it lies comes too late.
    m[DELIVERIES], m[LEASE_UNTIL] = m[DELIVERIES] + 1, false
  end
  if change == 'replay' then
    recall.keep(id, m)
  end
  if how.queue ~= '' and how.queue ~= m[QUEUE] then
    move(id, m)
  end
  if change == 'replay' then
    replay(m)
    unset(P .. 'failure', id)
    unset(P .. 'result', id)
    if m[TIES] then
      replay_bound(id, m)
    end
  elseif change == 'cancel' then
    cancel(id, m)
  elseif change == 'tag' then
    label(id, m, tags_with(m, how.add, how.remove))
  elseif change == 'set_policy' then
    set_policy(m)
  elseif change == 'run_now' then
    m[DUE_AT] = at
    if how.reset then
      begin_anew(m)
    end
  elseif change == 'expire' then
    expire(id, m)
  elseif change == 'park' then
    acts_on.park(id, m)
  elseif change == 'unpark' then
    acts_on.unpark(id, m)
  elseif change == 'edit' then
    acts_on.edit(id, m)
  elseif change == 'recall' then
    recall.back(id, m, at)
  elseif change == 'reserve' or change == 'unreserve' then
    m[LETTER][RESERVED] = change == 'reserve' and how.replay or nil
  else
    if lies ~= '' then
      m[LETTER][DISPOSITION] = lies
      m[ENDED_AT] = lies == 'trash' and at or m[LETTER][DIED_AT]
    end
    if change == 'skip' or lies == 'trash' then
      let_pass(id, m, change == 'skip')
    end
  end
end

-- Why not, for reasons that are not in what it is; nil for none.
local KEEPS_NOTHING_BACK, LEASED_MEANWHILE, KEEPS_OTHERS_BACK, NOT_PARKED = 4, 5, 6, 7

local function is_head(id, m)
  local line = its_line(m)
  return line and line.head == id and line
end

local function cannot_move(id, m)
  if m[QUEUE] == how.queue then
    return change == 'move' and {'there', how.queue} or nil
  end
  local line = is_head(id, m)
  if line and first_in(line.followers) then
    return KEEPS_OTHERS_BACK
  end
  return tied(m, ORDERED) and tied(m, AWAITED) and {'bound', m[QUEUE]} or nil
end

-- In the queue in which it will run it takes its dedupe key at once, so that the next sees it.
local function twin_of(id, m)
  local own = m[QUEUE]
  m[QUEUE] = how.queue ~= '' and how.queue or own
  local holder = tied(m, DEDUPED) and claimed_by_another(id, m, at)
  m[QUEUE] = own
  return holder
end

local function hindrance(id, m)
  if change == 'skip' then
    return not is_head(id, m) and KEEPS_NOTHING_BACK or nil
  elseif change == 'tag' then
    local count = #tags_with(m, how.add, how.remove)
    return count > how.most and {'tags', count} or nil
  elseif change == 'unpark' then
    return not tied(m, PARKED_ITEM) and NOT_PARKED or nil
  elseif change == 'run_now' then
    return tied(m, PARKED_ITEM) and acts_on.IS_PARKED or nil
  elseif change == 'edit' then
    local number = acts_on.revision_of(m)
    return (number >= how.most_edits or how.revision and how.revision ~= number) and {'revision', number} or nil
  elseif change == 'recall' then
    return recall.refusal(id, m)
  end
  local stays = how.queue ~= '' and cannot_move(id, m)
  if stays or change ~= 'replay' then
    return stays or nil
  end
  local lost, why = nil, nil
  if tied(m, WAITS) and not force then
    lost, why = first_hopeless(m)
  end
  if lost then
    return {why, lost}
  end
  local holder = twin_of(id, m)
  return holder and not force and {'twin', holder} or nil
end

-- Whether somebody works on it where it lies, and the change has to wait for that.
local function is_worked_on(m)
  local is_leased = m[LETTER] and m[LEASE_UNTIL] and m[LEASE_UNTIL] > at and m[WORKER] ~= ''
  return is_leased and refusals.held == 1
end

local function declare_target()
  if how.queue ~= '' and call('HEXISTS', sound(P .. 'queues', 'hash'), how.queue) == 0 then
    set(P .. 'queues', how.queue, cmsgpack.pack({false, '', ''}))
  end
end

local ids = {}
for first = FIRST_ITEM, #ARGV, 3 do
  ids[#ids + 1] = ARGV[first]
end
local records = fetch(sound(P .. 'item', 'hash'), ids)
local acts = fetch(sound(P .. 'deeds', 'hash'), ids)
recall.read(ids, change)
local answers, there, changed, names = {}, 0, {}, {}
for index, id in ipairs(ids) do
  local m = unpacked(records[index])
  if not m then
    answers[index] = records[index] and 3 or 2
  else
    there = there + 1
    local kind = m[LETTER] and m[LETTER][DISPOSITION] or m[STATE]
    local judged_by = ARGV[FIRST_ITEM - 1 + 3 * index]
    if done_before(acts[index]) then
      answers[index] = 1
    elseif is_worked_on(m) then
      answers[index] = {'held', m[WORKER]}
    elseif recall.reservation(m, change, how.reserved) then
      answers[index] = recall.reservation(m, change, how.reserved)
    elseif refusals[kind] == 1 then
      answers[index] = kind
    elseif only_ready and m[STATE] == 'leased' then
      -- Workers that go on taking from the front must not keep anybody from changing the rest.
      answers[index] = LEASED_MEANWHILE
    elseif judged_by ~= '' and judged_by ~= records[index] then
      return false
    else
      answers[index] = hindrance(id, m) or 0
    end
    if answers[index] == 0 then
      changed[#changed + 1] = {id, m, acts[index] or ''}
      names[#names + 1] = ARGV[FIRST_ITEM - 2 + 3 * index]
    end
  end
end
if expect ~= '' and tonumber(expect) ~= there then
  return there
end
if #changed > 0 then
  local deed = deed_of(at, change, actor, reason, request)
  for _, one in ipairs(changed) do
    alter(one[1], one[2])
    if one[2][LETTER] then
      -- Also one that only got a note.
      change_letter(one[1])
    end
    set(P .. 'deeds', one[1], one[3] .. deed)
  end
  conclude(at)
  recall.put_back()
  declare_target()
  enter('audit', meta, head .. table.concat(names, ',') .. tail, at)
  write()
end
return answers
