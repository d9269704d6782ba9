-- Which queues are encrypted.
-- Inputs:    declaration(queue); check_sealed(queue, body as it is kept)
-- Outputs:   what is kept of the queue, or nil; check_sealed refuses a body in clear for a queue that is encrypted
-- Atomicity: reads.

local SEALED = 2
local declarations = {}
local function declaration(queue)
  local known = declarations[queue]
  if known == nil then
    known = call('HGET', sound(P .. 'queues', 'hash'), queue)
    known = known and list_of(known) or false
    declarations[queue] = known
  end
  return known or nil
end

-- Before anything is written. The name goes as hexadecimal digits: an error is one line of text.
local function check_sealed(queue, body)
  local declared = declaration(queue)
  if declared and declared[9] and string.byte(body) ~= SEALED then
    refuse('ENCRYPT ' .. string.gsub(queue, '.', function(char) return string.format('%02x', string.byte(char)) end))
  end
end
