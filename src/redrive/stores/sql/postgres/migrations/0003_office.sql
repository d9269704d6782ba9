-- What people do with letters: tags, moves to other queues, a trash that is kept for a while, letters of another store.
-- Applied in one transaction. The functions are made anew after it: one whose result changed is dropped here.

drop function if exists {schema}.lock_lines(bigint[]);

-- Labels. In `ties` of its course the bit 128 says that an item has any; others are never looked for.
create table {schema}.tag (
    tag text collate "C" not null,
    seq bigint not null,
    primary key (tag, seq)
);
create index tag_seq on {schema}.tag (seq);

-- How long a discarded letter can be brought back: 30 days unless the queue says so.
alter table {schema}.queue add column keep_trash bigint not null default 2592000000;

-- The end of a letter in the trash is when it was discarded. What lies there already is kept as if it came today.
update {schema}.course c set ended_at = (extract(epoch from clock_timestamp()) * 1000)::bigint
from {schema}.letter l where l.seq = c.seq and l.disposition = 'trash';
