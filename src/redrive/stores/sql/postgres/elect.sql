-- elect: at most one owner per name.
-- Inputs: name, owner, for how long. Outputs: whether the owner leads.
-- Atomicity: one statement; the row is locked while its owner is compared.

-- :name function
create or replace function {schema}.elect(pinned bigint, what text, who text, ttl bigint) returns boolean
language plpgsql volatile parallel unsafe
as $function$
declare
    now_at bigint := {schema}.now_ms(pinned);
begin
    insert into {schema}.election as e (name, owner, until)
    values (what, who, now_at + ttl)
    on conflict (name) do update set owner = excluded.owner, until = excluded.until
    where e.owner = excluded.owner or e.until <= now_at;
    return found;
end
$function$;

-- :name call
select {schema}.elect(%b::bigint, %b, %b, %b);
