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
    and ((state = 'leased') > (lease_until is not null) or (lease_until is not null
        and (state not in ('leased', 'dead') or worker is null or leased_at is null)));

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

-- :name revision_misfits
-- Earlier payloads of an item that is not there, or of which the terms count another number.
select coalesce(i.id, '#' || r.seq) from revision r
left join item i on i.seq = r.seq left join terms t on t.seq = r.seq
where r.seq > ? and r.seq <= ?
group by r.seq having i.id is null or count(*) <> ifnull(json_extract(max(t.body), '$.revision'), 0);

-- :name revision_bodies
select coalesce(i.id, '#' || r.seq), r.body, r.packing, r.crc from revision r left join item i on i.seq = r.seq
where r.seq > ? and r.seq <= ?;

-- :name result_alone
select '#' || seq from result
where seq > ? and seq <= ? and not exists (select 1 from item where item.seq = result.seq);

-- :name attempt_alone
select '#' || seq from attempt
where seq > ? and seq <= ? and not exists (select 1 from item where item.seq = attempt.seq);

-- :name kept_letter_alone
select '#' || seq from recall
where seq > ? and seq <= ? and not exists (select 1 from item where item.seq = recall.seq);

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

-- :name letter_unnumbered
select coalesce(i.id, '#' || l.seq) from letter l left join item i on i.seq = l.seq
where l.seq > ? and l.seq <= ? and not exists (select 1 from change c where c.seq = l.seq);

-- :name change_alone
select '#' || seq from change
where seq > ? and seq <= ? and id is null and not exists (select 1 from item where item.seq = change.seq);

-- :name hold_misfits
-- A hold on what is not ready; a hold for nothing, or none although it waits for others.
select i.id from item i
where i.seq > ? and i.seq <= ? and (
    (i.hold <> 0 and i.state <> 'ready')
    or i.hold <> 4 and (i.hold = 1) <> exists (select 1 from edge where edge.waiting = i.seq)
    or (i.hold = 4) <> (i.ties & 256 <> 0)
    or (i.hold = 4 and not exists (select 1 from terms t where t.seq = i.seq and t.parked <> ''))
    or (i.hold = 3 and not exists (
        select 1 from aside a join terms t on t.seq = i.seq
        where a.queue = i.queue and a.key = t.limit_key and a.seq = i.seq
    ))
);

-- :name line_misfits
-- Live items with an order key that are neither its head nor among its followers, or followers without a hold.
select i.id from terms t join item i on i.seq = t.seq
left join line n on n.queue = i.queue and n.key = t.order_key
left join follower f on f.queue = i.queue and f.key = t.order_key and f.place = t.place and f.seq = t.seq
where t.seq > ? and t.seq <= ? and t.order_key <> '' and i.state in ('ready', 'leased')
    and (n.head is i.seq) + (f.seq is not null and i.state = 'ready' and i.hold in (1, 2, 4)) <> 1;

-- :name tags_missing
select id from item
where seq > ? and seq <= ? and ties & 128 <> 0 and not exists (select 1 from tag where tag.seq = item.seq);

-- :name tag_alone
select coalesce(i.id, '#' || t.seq) from tag t left join item i on i.seq = t.seq
where t.seq > ? and t.seq <= ? and (i.seq is null or i.ties & 128 = 0);

-- :name terms_alone
select '#' || seq from terms
where seq > ? and seq <= ? and not exists (select 1 from item where item.seq = terms.seq);

-- --- what binds items to others: each statement is one state ---

-- :name turn_misfits
-- Members of a family that could give something, on which no lease of the family will look. One that is paused, or may
-- be full, is not looked at before that changes.
select q.name from queue q join queue f on f.name = substr(q.name, 1, instr(q.name, ':')) || '*'
where instr(q.name, ':') > 1 and q.name <> f.name and q.paused = 0 and q.ready > 0
    and (q.settings is null or json_extract(cast(q.settings as text), '$.max_running') is null)
    and not exists (select 1 from agenda a where a.queue = q.name);

-- :name lower
insert into agenda (family, queue, next_at) values (substr(?1, 1, instr(?1, ':')) || '*', ?1, 0);

-- :name head_misfits
select n.queue || ': ' || n.key from line n left join item i on i.seq = n.head
where case
    when n.head is null then n.waiting <> 0 or n.gap = ''
    when n.status = 'flowing' then ifnull(i.state, '') not in ('ready', 'leased')
    else ifnull(i.state, '') <> 'dead'
end;

-- :name waiting_misfits
select n.queue || ': ' || n.key from line n
where n.waiting <> (select count(*) from follower f where f.queue = n.queue and f.key = n.key);

-- :name follower_alone
select coalesce(i.id, '#' || f.seq) from follower f
left join item i on i.seq = f.seq
left join line n on n.queue = f.queue and n.key = f.key
where i.seq is null or i.state <> 'ready' or n.head is null;

-- :name slot_misfits
with there (queue, key, n) as (
    select i.queue, t.limit_key, count(*) from item i join terms t on t.seq = i.seq
    where i.state = 'leased' and t.limit_key <> '' group by 1, 2
)
select t.queue || ': ' || t.key from there t left join slot s on s.queue = t.queue and s.key = t.key
where s.running is not t.n
union all
select s.queue || ': ' || s.key from slot s
where s.running <> 0 and not exists (select 1 from there t where t.queue = s.queue and t.key = s.key);

-- :name aside_misfits
select coalesce(i.id, '#' || a.seq) from aside a left join item i on i.seq = a.seq
where i.seq is null or i.state <> 'ready' or i.hold <> 3;

-- :name edge_misfits
select coalesce(i.id, '#' || e.waiting) from edge e left join item i on i.seq = e.waiting
where i.seq is null or i.state <> 'ready';

-- :name dedupe_misfits
select d.key from dedupe d left join item i on i.seq = d.seq
where (d.until is null) <> (ifnull(i.state, '') in ('ready', 'leased'));

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
select name, ready, held, parked, leased, done, open, archived, trash, cancelled from queue;

-- :name counted_items
select queue, state, count(*) from item where state <> 'dead' and not (state = 'ready' and hold <> 0)
group by queue, state;

-- :name counted_held
select i.queue, case when i.hold = 4 or n.status = 'parked' and n.head <> i.seq then 'parked' else 'held' end, count(*)
from item i
left join terms t on t.seq = i.seq
left join line n on n.queue = i.queue and n.key = t.order_key
where i.state = 'ready' and i.hold <> 0
group by 1, 2;

-- :name counted_letters
select queue, disposition, count(*) from letter group by queue, disposition;

-- :name kept_causes
select cause, queue, n from cause;

-- :name counted_causes
select cause, queue, count(*) from letter where disposition = 'open' group by cause, queue;

-- :name kept_routes
select name, open from route where open <> 0;

-- :name counted_routes
select route, count(*) from letter where disposition = 'open' and route <> '' group by route;

-- :name last_number
select coalesce((select n from sequence where name = 'item'), 0), coalesce((select max(seq) from item), 0);

-- :name last_change
select coalesce((select n from sequence where name = 'change'), 0), coalesce((select max(n) from change), 0);

-- --- repair ---

-- :name declare
insert into queue (name) values (?) on conflict (name) do nothing;

-- :name set_counters
update queue
set ready = ?, held = ?, parked = ?, leased = ?, done = ?, open = ?, archived = ?, trash = ?, cancelled = ?
where name = ?;

-- :name forget_causes
delete from cause;

-- :name set_cause
insert into cause (cause, queue, n) values (?, ?, ?);

-- :name forget_routes
update route set open = 0;

-- :name set_route
insert into route (name, open) values (?, ?) on conflict (name) do update set open = excluded.open;

-- :name set_last_number
insert into sequence (name, n) values ('item', ?) on conflict (name) do update set n = max(n, excluded.n);

-- :name forget_tags
-- Of items that are not there any more.
delete from tag where not exists (select 1 from item where item.seq = tag.seq);

-- :name mark_tagged
update item set ties = ties | 128 where ties & 128 = 0 and seq in (select seq from tag);

-- :name unmark_untagged
update item set ties = ties & ~128
where ties & 128 <> 0 and not exists (select 1 from tag where tag.seq = item.seq);

-- :name set_last_change
insert into sequence (name, n) values ('change', ?) on conflict (name) do update set n = max(n, excluded.n);

-- :name forget_changes
delete from change where id is null and not exists (select 1 from item where item.seq = change.seq);

-- :name number_letters
-- Those that have no number, after the last one given.
insert into change (seq, n)
select l.seq, (select n from sequence where name = 'change') + row_number() over (order by l.seq)
from letter l where not exists (select 1 from change c where c.seq = l.seq);
