-- beat: says that a worker is alive, and tidies up what is long over.
-- Inputs: worker, facts, for how long; the ages after which workers and lease requests are forgotten. Outputs: none.
-- Atomicity: one statement.

-- :name function
create or replace function {schema}.beat(pinned bigint, who text, what bytea, ttl bigint, keep bigint) returns void
language plpgsql volatile parallel unsafe
as $function$
declare
    now_at bigint := {schema}.now_ms(pinned);
begin
    insert into {schema}.worker as w (name, facts, seen_at, alive_until)
    values (who, what, now_at, now_at + ttl)
    on conflict (name) do update
    set facts = excluded.facts, seen_at = excluded.seen_at, alive_until = excluded.alive_until;
    -- Rows that somebody writes are not old, so they need not be waited for.
    delete from {schema}.worker w
    where w.name = any (array(
        select o.name from {schema}.worker o where o.seen_at <= now_at - keep for update skip locked
    ));
    delete from {schema}.nonce n
    where n.ctid = any (array(
        select o.ctid from {schema}.nonce o where o.at <= now_at - keep for update skip locked
    ));
    perform {schema}.fold();
end
$function$;

-- :name call
select {schema}.beat(%b::bigint, %b, %b, %b, %b);
