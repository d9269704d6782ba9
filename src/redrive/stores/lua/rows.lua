#!lua flags=no-writes
-- rows: items by their ids.
-- Inputs:    which parts, by letters ("b" payload, "f" evidence, "r" result); the ids
-- Outputs:   now; then id, record, payload, evidence and result of each, and 1 for one that is parked; nil for what is not
--            there or not asked for
-- Atomicity: one read
-- Uses: parking

local parts = ARGV[2]
local ids = {}
for index = 3, #ARGV do
  ids[index - 2] = ARGV[index]
end

local function part(letter, key)
  return string.find(parts, letter, 1, true) and fetch(P .. key, ids) or {}
end

local records, bodies = fetch(P .. 'item', ids), part('b', 'body')
local failures, results = part('f', 'failure'), part('r', 'result')
local reply = {now()}
for index, id in ipairs(ids) do
  local size = #reply
  reply[size + 1], reply[size + 2], reply[size + 3] = id, records[index], bodies[index] or false
  reply[size + 4], reply[size + 5] = failures[index] or false, results[index] or false
  reply[size + 6] = is_parked(id, records[index]) and 1 or false
end
return reply
