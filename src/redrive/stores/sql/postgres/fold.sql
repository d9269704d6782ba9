-- fold: makes few rows of many deltas. Sums are the same before and after, so it can happen at any time, or never.
-- Inputs: none. Outputs: none.
-- Atomicity: one statement. Only one folds at a time, nobody waits for it, and rows written meanwhile are left alone.

-- :name function
create or replace function {schema}.fold() returns void
language plpgsql volatile parallel unsafe
as $function$
begin
    if not pg_try_advisory_xact_lock(hashtextextended('{schema}.fold', 0)) then
        return;
    end if;
    -- Of a few it is not worth writing them all anew.
    if (select count(*) - count(distinct c.queue) from {schema}.counter c) >= 100 then
        with gone as (delete from {schema}.counter c returning c.*)
        insert into {schema}.counter (queue, ready, leased, done, open, archived, trash, cancelled)
        select g.queue, sum(g.ready), sum(g.leased), sum(g.done), sum(g.open), sum(g.archived), sum(g.trash),
               sum(g.cancelled)
        from gone g group by g.queue;
    end if;
    if (select count(*) - count(distinct (c.cause, c.queue)) from {schema}.cause c) >= 100 then
        with gone as (delete from {schema}.cause c returning c.*)
        insert into {schema}.cause (cause, queue, n)
        select g.cause, g.queue, sum(g.n) from gone g group by g.cause, g.queue having sum(g.n) <> 0;
    end if;
end
$function$;

-- :name call
select {schema}.fold();
