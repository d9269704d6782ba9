-- now_ms: the one place that reads the clock, in whole milliseconds since the epoch.
-- Inputs: the instant to take instead (tests have clocks of their own), or null. Outputs: now.
-- Atomicity: none needed. It is the server's time at the call, not at the beginning of the transaction.

-- :name function
create or replace function {schema}.now_ms(pinned bigint) returns bigint
language sql volatile parallel safe
as $$ select coalesce(pinned, floor(extract(epoch from clock_timestamp()) * 1000)::bigint) $$;

-- :name now
select {schema}.now_ms(%b::bigint);
