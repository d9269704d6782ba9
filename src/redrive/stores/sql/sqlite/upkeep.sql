-- check and repair: the truths that hold in every committed state.
-- Inputs: for rows, a window of numbers: more than the first and up to the second.
-- Outputs: names of what breaks the truth: the item's id, or #number where there is no item.
-- Atomicity: each window is one statement and so one state. Counters and rows are read in one transaction, because they
-- have to be of the same state. The repair is one `begin immediate`.

-- :name window
-- How far the next so many rows reach.
select max(seq), count(*) from (select seq from {table} where seq > ? order by seq limit ?);

-- :name shape
-- Tables and indexes with their columns.
select type, name, case type
    when 'table' then (select group_concat(name, ', ') from pragma_table_info(sqlite_master.name))
    else (select group_concat(name, ', ') from pragma_index_info(sqlite_master.name))
end
from sqlite_master
where type in ('table', 'index') and name not like 'sqlite\_%' escape '\';

-- --- rows ---

-- :name state_unknown
select id from item
where seq > ? and seq <= ? and state not in ('ready', 'leased', 'done', 'dead', 'cancelled');

-- :name lease_misfits
select id from item
where seq > ? and seq <= ?
    and ((state = 'leased') <> (lease_until is not null) or (state = 'leased' and (worker is null or leased_at is null)));

-- :name end_misfits
select id from item
where seq > ? and seq <= ? and (state in ('done', 'dead', 'cancelled')) <> (ended_at is not null);

-- :name no_payload
select id from item
where seq > ? and seq <= ? and not exists (select 1 from payload where payload.seq = item.seq);

-- :name dead_without_letter
select id from item
where seq > ? and seq <= ? and state = 'dead' and not exists (select 1 from letter where letter.seq = item.seq);

-- :name pruned_but_there
select id from item
where seq > ? and seq <= ? and exists (select 1 from tombstone where tombstone.id = item.id);

-- :name payload_alone
select '#' || seq from payload
where seq > ? and seq <= ? and not exists (select 1 from item where item.seq = payload.seq);

-- :name result_alone
select '#' || seq from result
where seq > ? and seq <= ? and not exists (select 1 from item where item.seq = result.seq);

-- :name attempt_alone
select '#' || seq from attempt
where seq > ? and seq <= ? and not exists (select 1 from item where item.seq = attempt.seq);

-- :name deed_alone
select '#' || seq from deed
where seq > ? and seq <= ?
    and (not exists (select 1 from item where item.seq = deed.seq)
        or not exists (select 1 from journal where journal.position = deed.position));

-- :name letter_misfits
-- A letter whose item is not there, is not dead, or is of another queue, or that lies nowhere we know.
select coalesce(i.id, '#' || l.seq) from letter l left join item i on i.seq = l.seq
where l.seq > ? and l.seq <= ?
    and (i.seq is null or i.state <> 'dead' or i.queue <> l.queue
        or l.disposition not in ('open', 'archived', 'trash'));

-- --- bodies: read only when there is time for it ---

-- :name payload_bodies
select i.id, p.body, p.packing, p.crc from item i join payload p on p.seq = i.seq
where i.seq > ? and i.seq <= ?;

-- :name result_bodies
select coalesce(i.id, '#' || r.seq), r.body, r.packing from result r left join item i on i.seq = r.seq
where r.seq > ? and r.seq <= ?;

-- :name letter_bodies
select coalesce(i.id, '#' || l.seq), l.failure, l.cause, l.error from letter l left join item i on i.seq = l.seq
where l.seq > ? and l.seq <= ?;

-- :name attempt_bodies
select coalesce(i.id, '#' || a.seq), a.body, a.delivery from attempt a left join item i on i.seq = a.seq
where a.seq > ? and a.seq <= ?;

-- --- what is kept beside the rows: one transaction ---

-- :name kept_counters
select name, ready, leased, done, open, archived, trash, cancelled from queue;

-- :name counted_items
select queue, state, count(*) from item where state <> 'dead' group by queue, state;

-- :name counted_letters
select queue, disposition, count(*) from letter group by queue, disposition;

-- :name kept_causes
select cause, queue, n from cause;

-- :name counted_causes
select cause, queue, count(*) from letter where disposition = 'open' group by cause, queue;

-- :name last_number
select coalesce((select n from sequence where name = 'item'), 0), coalesce((select max(seq) from item), 0);

-- --- repair ---

-- :name declare
insert into queue (name) values (?) on conflict (name) do nothing;

-- :name set_counters
update queue
set ready = ?, leased = ?, done = ?, open = ?, archived = ?, trash = ?, cancelled = ?
where name = ?;

-- :name forget_causes
delete from cause;

-- :name set_cause
insert into cause (cause, queue, n) values (?, ?, ?);

-- :name set_last_number
insert into sequence (name, n) values ('item', ?) on conflict (name) do update set n = max(n, excluded.n);
