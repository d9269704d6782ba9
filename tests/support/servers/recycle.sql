-- Empties a schema that a test is done with, if it still is as it was made. In the session of whoever recycles only.
-- Inputs: the schema's oid and name; what `shape` gave when it was new; its tables that were not empty then, each with
--   what `contents` gave; how many bytes make a table large.
-- Outputs: whether it can be given on. If not, nothing was changed.
-- Statistics outlive what they were made of, and the next test's plans would go by them: a schema whose tables the server
-- has looked at is not as it was made.
-- Atomicity: one statement. In one call, since to ask for each table took longer than to empty it.

create function pg_temp.shape(schema_id oid, schema_name text) returns text language plpgsql as $$
begin
    return sum(hashtextextended(line, 0)) from (
        select concat_ws(' ', 'relation', relname, relkind, relowner, reloptions, relacl,
                         case when relkind = 'r' then reltuples >= 0 end) as line
        from pg_class where relnamespace = schema_id
        union all
        select concat_ws(' ', 'column', relname, attname, attnum, atttypid, attnotnull, atthasdef, attstorage)
        from pg_class join pg_attribute on attrelid = pg_class.oid
        where relnamespace = schema_id and relkind in ('r', 'p', 'v', 'm')
        union all
        select concat_ws(' ', 'function', proname, replace(prosrc, schema_name, ''), proacl, proconfig)
        from pg_proc where pronamespace = schema_id
        union all
        select concat_ws(' ', 'constraint', conname, contype, convalidated) from pg_constraint
        where connamespace = schema_id
        union all
        select concat_ws(' ', 'schema', nspowner, nspacl) from pg_namespace where oid = schema_id
    ) as lines;
end
$$;

create function pg_temp.contents(schema_name text, table_name text) returns text language plpgsql as $$
declare
    found text;
begin
    execute format('select md5(string_agg(t::text, E''\n'' order by t::text)) from %I.%I t', schema_name, table_name)
        into found;
    return found;
end
$$;

create function pg_temp.seeds(schema_id oid, schema_name text) returns jsonb language sql as $$
    select coalesce(jsonb_object_agg(relname, pg_temp.contents(schema_name, relname)), '{}')
    from pg_class where relnamespace = schema_id and relkind in ('r', 'p') and pg_relation_size(oid) > 0
$$;

create function pg_temp.recycle(schema_id oid, schema_name text, was text, seeds jsonb, large bigint) returns boolean
language plpgsql as $$
declare
    known record;
    written record;
begin
    if pg_temp.shape(schema_id, schema_name) is distinct from was then
        return false;
    end if;
    for known in select key as name, value as rows from jsonb_each_text(seeds) loop
        if pg_temp.contents(schema_name, known.name) is distinct from known.rows then
            return false;
        end if;
    end loop;
    for written in
        select relname as name, pg_relation_size(oid) as size from pg_class
        where relnamespace = schema_id and relkind in ('r', 'p') and pg_relation_size(oid) > 0 and not seeds ? relname
    loop
        execute format(
            case when written.size < large then 'delete from %I.%I' else 'truncate %I.%I' end,
            schema_name, written.name
        );
    end loop;
    perform setval(seqrelid, seqstart, false) from pg_sequence join pg_class on oid = seqrelid
    where relnamespace = schema_id;
    return true;
end
$$;
