-- status: whether redrive is there, and how its tables and its server stand.
-- Inputs: the name of the schema, not quoted. Outputs: see each statement.
-- Atomicity: each statement sees one moment, and changes nothing.

-- :name there
-- By the catalog, which everybody may read.
select exists (
    select from pg_catalog.pg_class as relation
    join pg_catalog.pg_namespace as space on space.oid = relation.relnamespace
    where space.nspname = %b and relation.relname = 'migration' and relation.relkind = 'r'
);

-- :name tables
-- Bytes with indexes and large values; rows that are dead but still there, as far as statistics know.
select coalesce(sum(pg_catalog.pg_total_relation_size(relation.oid)), 0)::bigint,
       coalesce(sum(pg_catalog.pg_stat_get_dead_tuples(relation.oid)), 0)::bigint
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as space on space.oid = relation.relnamespace
where space.nspname = %b and relation.relkind = 'r';

-- :name horizon
-- How many transactions ago the oldest moment lies that somebody still looks at: dead rows of later ones must stay.
-- Sessions of others are seen only by who may see them.
select greatest(
    coalesce((select max(age(backend_xmin)) from pg_catalog.pg_stat_activity where pid <> pg_backend_pid()), 0),
    coalesce((select max(greatest(age(xmin), age(catalog_xmin))) from pg_catalog.pg_replication_slots), 0),
    coalesce((select max(age(transaction)) from pg_catalog.pg_prepared_xacts), 0)
)::bigint;

-- :name unfolded
-- Rows of counters beyond one for each queue, and one for each cause in a queue and route.
select (select count(*) - count(distinct queue) from {schema}.counter)
     + (select count(*) - count(distinct (cause, queue, route)) from {schema}.cause);
