-- open: what the database is, and which migrations it has.
-- Inputs: none. Outputs: names of tables; numbers and checksums of migrations.
-- Atomicity: the migrations run in one `begin immediate`, so of several openers one applies and the others find them.

-- :name tables
select name from sqlite_master where type = 'table' and name not like 'sqlite\_%' escape '\';

-- :name create_migration
create table if not exists redrive_migration (
    number integer primary key,
    checksum text not null,
    applied_at integer not null
);

-- :name applied
select number, checksum from redrive_migration order by number;

-- :name record
insert into redrive_migration (number, checksum, applied_at) values (?, ?, ?);
