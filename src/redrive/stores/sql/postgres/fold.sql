-- fold: makes few rows of many deltas. Sums are the same before and after, so it can happen at any time, or never.
-- Inputs: none. Outputs: none.
-- Atomicity: one statement. Only one folds at a time, nobody but a reader of changes waits for it, and rows written meanwhile are left alone.

-- :name function
create or replace function {schema}.fold() returns void
language plpgsql volatile parallel unsafe
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $function$
begin
    if not pg_try_advisory_xact_lock(hashtextextended('{schema}.fold', 0)) then
        return;
    end if;
    -- Of a few it is not worth writing them all anew.
    if (select count(*) - count(distinct c.queue) from {schema}.counter c) >= 100 then
        with gone as (delete from {schema}.counter c returning c.*)
        insert into {schema}.counter (queue, ready, leased, done, open, archived, trash, cancelled, held, parked)
        select g.queue, sum(g.ready), sum(g.leased), sum(g.done), sum(g.open), sum(g.archived), sum(g.trash),
               sum(g.cancelled), sum(g.held), sum(g.parked)
        from gone g group by g.queue;
    end if;
    -- Of members there may be very many, and most have not moved: their rows are not even read.
    with moved as (
        delete from {schema}.member_moved m returning m.queue
    ), many as (
        select o.queue from (select distinct m.queue from moved m) o
        where (select count(*) from {schema}.member_counter c where c.queue = o.queue) >= 20 limit 100
    ), gone as (
        delete from {schema}.member_counter c using many m where c.queue = any (array[m.queue]) returning c.*
    )
    insert into {schema}.member_counter (queue, ready, leased, done, open, archived, trash, cancelled, held, parked)
    select g.queue, sum(g.ready), sum(g.leased), sum(g.done), sum(g.open), sum(g.archived), sum(g.trash),
           sum(g.cancelled), sum(g.held), sum(g.parked)
    from gone g group by g.queue;
    if (select count(*) - count(distinct (c.cause, c.queue, c.route)) from {schema}.cause c) >= 100 then
        with gone as (delete from {schema}.cause c returning c.*)
        insert into {schema}.cause (cause, queue, route, n)
        select g.cause, g.queue, g.route, sum(g.n) from gone g group by g.cause, g.queue, g.route having sum(g.n) <> 0;
    end if;
    -- Until so many wait for a number, or a reader asks, they cost what made them letters nothing more.
    if (select count(*) from {schema}.unnumbered) >= 10000 then
        perform {schema}.number_changes();
    end if;
    -- Limit keys of which nothing runs any more. A lease or a settle that has one in its hands makes it anew.
    delete from {schema}.slot s using (
        select o.queue, o.key from {schema}.slot o where o.running = 0 limit 1000 for no key update skip locked
    ) o
    where s.queue = any (array[o.queue]) and s.key = o.key and s.running = 0;
end
$function$;

-- :name call
select {schema}.fold();
