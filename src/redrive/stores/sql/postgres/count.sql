-- Counters that transactions move beside their own rows.
-- Inputs: what to add, as arrays. Outputs: none.
-- Atomicity: in the transaction that moves what they count; at most one row per queue (and cause) each time.

-- :name queues
insert into {schema}.counter (queue, ready, leased, done, open, archived, trash, cancelled, held, parked)
select * from unnest(%b::text[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[],
                     %b::bigint[], %b::bigint[], %b::bigint[]);

-- :name causes
insert into {schema}.cause (cause, queue, route, n)
select * from unnest(%b::text[], %b::text[], %b::text[], %b::bigint[]);
