#!lua flags=no-writes
-- Looks at a namespace before it is used.
-- Inputs:    ARGV[2] msgpack list of the commands of all scripts, each with arguments
-- Outputs:   the schema it was made with, 0 for none; the run of the server it was last reconciled in; the commands that
--            this user may not run
-- Atomicity: reads one state.

local missing = {}
for _, command in ipairs(cmsgpack.unpack(ARGV[2])) do
  if not redis.acl_check_cmd(unpack(command)) then
    missing[#missing + 1] = command[1]
  end
end
if #missing > 0 then
  return {0, '', missing}
end
sound(P .. 'boot', 'hash')
return {tonumber(call('HGET', P .. 'boot', 'schema') or 0), call('HGET', P .. 'boot', 'run') or '', missing}
