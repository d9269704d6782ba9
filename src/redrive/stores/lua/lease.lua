#!lua flags=allow-oom
-- Gives due items of unpaused queues to one worker.
-- Inputs:    ARGV[2] msgpack request [worker, nonce, holding, [[queue, limit, ttl, max_crashes, retries, turn,
--            share, kinds], …], worker and lane, item or empty]
-- Outputs:   time, then as leasing.lua says
-- Atomicity: all keys are checked before the first write. Taking work off the store is let through when memory is full.
-- Uses: ranks bonds(ledger lines ties) limits(limits) choosing(choosing) lending(lending) families(limits opening families) leasing

local time = now()
return {time, give(prepared(cmsgpack.unpack(ARGV[2])), time)}
