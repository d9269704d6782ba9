-- configure: declares a queue and changes its settings; and those of routes and gates.
-- Inputs: see each statement. Outputs: settings as rows of QueueSettings, gates as rows of Gate.
-- Atomicity: one transaction. The queue's row is locked first, and with it every put to a queue with a capacity; then what
--   leases wait for, so that a limit is counted either before or after the change.

-- :name declare
insert into {schema}.queue (name) values (%b) on conflict (name) do nothing;

-- :name pause
update {schema}.queue set paused = %b, paused_by = %b, paused_reason = %b where name = %b;

-- :name settings
select max_running, max_per_key, rate_count, rate_per, rate_burst, capacity, order_mode, policy, gate, keep,
       keep_results, retry_share, keep_trash, encrypt
from {schema}.queue where name = %b

-- :name write
update {schema}.queue
set max_running = %b, max_per_key = %b, rate_count = %b, rate_per = %b, rate_burst = %b, capacity = %b,
    order_mode = %b, policy = %b, gate = %b, keep = %b, keep_results = %b, retry_share = %b,
    keep_trash = %b, encrypt = %b
where name = %b;

-- :name pace
-- What leases of a limited queue lock. A new rate begins full.
insert into {schema}.pace (queue) values (%b) on conflict (queue) do update set full_at = 0;

-- :name lock_pace
insert into {schema}.pace (queue) values (%b) on conflict (queue) do update set full_at = pace.full_at;

-- :name fill
select {schema}.fill_of(%b);

-- :name free_all
-- All that were set aside, of any key of the queue. First their slots, so that no lease sets one aside meanwhile.
select {schema}.free_aside(%b);

-- :name free_aside
create or replace function {schema}.free_aside(of_queue text) returns boolean
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    any_freed boolean;
begin
    perform 1 from {schema}.slot s where s.queue = of_queue order by s.key for no key update;
    with gone as (
        delete from {schema}.aside a where a.queue = of_queue returning a.seq
    ), freed as (
        update {schema}.course c set hold = 0 from gone g where c.seq = any (array[g.seq]) and c.hold = 3 returning 1
    ), counted as (
        insert into {schema}.counter (queue, held, ready)
        select of_queue, -count(*), count(*) from freed having count(*) > 0
    )
    select count(*) > 0 into any_freed from freed;
    return any_freed;
end
$function$;

-- :name lock_route
-- So that no letter comes to it while its letters are counted.
insert into {schema}.route as r (name, capacity) values (%b, %b)
on conflict (name) do update set capacity = r.capacity;

-- :name open_of_route
select coalesce(sum(n), 0)::bigint from {schema}.cause where route = %b;

-- :name write_route
update {schema}.route set capacity = %b where name = %b;

-- :name drop_route
delete from {schema}.route where name = %b;

-- :name gates
select name, version, interval, burst, share, cap, floor, next_at, credit, floor_at, body
from {schema}.gate where %b::text is null or name = %b order by name;

-- :name lock_gate
select version from {schema}.gate where name = %b for no key update;

-- :name make_gate
-- Nothing if there is one, or will be: two who make it at once wait for each other.
insert into {schema}.gate (name, version, interval, burst, share, cap, floor, next_at, body)
values (%b, 1, %b, %b, %b, %b, %b, %b, %b) on conflict (name) do nothing
returning version;

-- :name write_gate
update {schema}.gate
set version = version + 1, interval = %b, burst = %b, share = %b, cap = %b, floor = %b, next_at = coalesce(%b, next_at),
    body = %b
where name = %b;

-- :name behind
-- The queues behind a gate.
select name from {schema}.queue where gate = %b and gate <> '';
