#!lua flags=allow-oom
-- declare_family: a family of queues, with all that have such a name; or its counters anew.
-- Inputs:    the family; "1" to count anew what is declared
-- Outputs:   1
-- Atomicity: one script
-- Uses: limits ranks opening declaring

declare_family(ARGV[2])
if ARGV[3] == '1' then
  recount_family(ARGV[2])
end
return 1
