-- open: what a database must have before its first use, and what it is.
-- Inputs: none. Outputs: facts about the server; numbers and checksums of migrations.
-- Atomicity: the migrations and the functions go in together, in one transaction under a lock that openers share.

-- :name facts
select current_setting('server_version_num')::bigint, current_setting('server_version'), pg_is_in_recovery(),
       current_setting('default_transaction_read_only'), current_setting('fsync'),
       current_setting('full_page_writes'), current_setting('synchronous_commit'),
       to_regclass('{schema}.migration')::oid is not null, current_user::text, current_database()::text,
       to_regnamespace('{schema}')::oid is not null, current_setting('data_sync_retry'),
       current_setting('transaction_isolation'), current_setting('server_encoding'),
       coalesce(current_setting('redrive.settings', true), '');

-- :name applied
select number::bigint, checksum from {schema}.migration order by number;

-- :name lock
select pg_advisory_xact_lock(hashtextextended('{schema}.migration', 0));

-- :name patience
-- Building indexes, or waiting for somebody else who does, takes longer than a verb may.
select set_config('statement_timeout', '60s', true), set_config('lock_timeout', '60s', true);

-- :name create_schema
create schema if not exists {schema};

-- :name create_migration
create table if not exists {schema}.migration (
    number integer primary key,
    checksum text not null,
    applied_at bigint not null
);

-- :name record
insert into {schema}.migration (number, checksum, applied_at) values (%b, %b, {schema}.now_ms(null));

-- :name lacking
-- What this user may not use of the schema's tables, sequences and functions. A case is judged in its order: else the
-- server is asked about every function that it has.
select c.relname::text from pg_class c
where c.relnamespace = '{schema}'::regnamespace and (c.relkind = 'r' or c.relname = 'item_seq') and not case c.relkind
    when 'S' then has_sequence_privilege(c.oid, 'usage')
    else has_table_privilege(c.oid, 'select')
        and (c.relname = 'migration' or (has_table_privilege(c.oid, 'insert')
            and has_table_privilege(c.oid, 'update') and has_table_privilege(c.oid, 'delete')))
end
union all
select p.proname::text from pg_proc p
where case when p.pronamespace = '{schema}'::regnamespace then not has_function_privilege(p.oid, 'execute') end;
