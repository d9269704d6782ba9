-- changes: items that are or were letters, in the order of the numbers of their last changes.
-- Inputs: a change number and how many. Outputs: change numbers, numbers of items, and ids of those that were pruned.
-- Atomicity: a write only notes which letters it changed, in its own transaction, and waits for nobody. Whoever reads, or
--   folds, gives numbers to what is committed by then, one at a time until its commit: so numbers are in the order in
--   which they can be seen, and what commits later gets a higher one.

-- :name note
insert into {schema}.unnumbered (seq) select o.seq from unnest(%b::bigint[]) with ordinality as o (seq, nth) order by o.nth;

-- :name number
-- The lock is taken by one statement and what it protects is read by the next, which sees the numbers given before. The
-- highest number never goes: a pruned item keeps its row.
create or replace function {schema}.number_changes() returns void
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
begin
    if not exists (select 1 from {schema}.unnumbered) then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('{schema}.changes', 0));
    with taken as (
        delete from {schema}.unnumbered c returning c.place, c.seq, c.id
    ), once as (
        select t.seq, max(t.id) as id, row_number() over (order by max(t.place)) as nth from taken t group by t.seq
    )
    insert into {schema}.change (seq, n, id)
    select o.seq, (select coalesce(max(c.n), 0) from {schema}.change c) + o.nth, o.id from once o order by o.nth
    on conflict (seq) do update set n = excluded.n, id = excluded.id;
end
$function$;

-- :name function
-- An item that is gone while it has no id here was pruned just now: it comes with a higher number.
create or replace function {schema}.changes(after_n bigint, most bigint)
returns table (n bigint, seq bigint, id text)
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
begin
    perform {schema}.number_changes();
    return query
    select c.n, c.seq, c.id from {schema}.change c
    where c.n > after_n and (c.id is not null or exists (
        select 1 from {schema}.item i where i.seq = c.seq offset 0
    ))
    order by c.n limit most;
end
$function$;

-- :name call
select n, seq, id from {schema}.changes(%b::bigint, %b::bigint);
