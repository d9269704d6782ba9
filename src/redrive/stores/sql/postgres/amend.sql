-- amend: moves items nobody holds. The caller has checked each against core.verbs.refusal in the same transaction.
-- Inputs: ids or numbers of items as arrays. Outputs: what amend and prune need to know of items.
-- Atomicity: one transaction with letters, counters, causes, the audit entry and the deeds. Whoever changes an item or
-- its letter holds the lock of its course. Locks are taken by number, and what is judged is read by a later statement:
-- it sees what whoever held the lock before has committed.

-- :name lock_named
select c.seq, i.id from {schema}.item i join {schema}.course c on c.seq = i.seq
where i.id = any(%b::text[])
order by c.seq
for update of c;

-- :name lock
select c.seq from {schema}.course c where c.seq = any(%b::bigint[]) order by c.seq for update;

-- :name states
select c.seq, c.queue, c.state, l.disposition, l.cause
from {schema}.course c left join {schema}.letter l on l.seq = c.seq
where c.seq = any(%b::bigint[]);

-- :name places
-- Of these those that match.
select c.seq, i.id, c.queue, c.state, l.disposition, l.cause
from {schema}.course c
join {schema}.item i on i.seq = c.seq
left join {schema}.letter l on l.seq = c.seq
where c.seq = any(%b::bigint[]) and ({where})
order by c.seq;

-- :name counted
-- The first that match, and how many match in all.
select c.seq, i.id, c.queue, c.state, l.disposition, l.cause, count(*) over ()
from {schema}.course c
join {schema}.item i on i.seq = c.seq
left join {schema}.letter l on l.seq = c.seq
where ({where})
order by c.seq
limit %b::bigint;

-- :name done_before
-- Which of these items an earlier amend under this request id changed.
select d.seq from {schema}.deed d
where d.seq = any(%b::bigint[])
    and d.position = any(array(select j.position from {schema}.journal j where j.request_id = %b and j.change <> ''));

-- :name replay
with gone as (delete from {schema}.letter where seq = any(%b::bigint[]))
update {schema}.course
set state = 'ready', due_at = %b::bigint, renewed_at = %b::bigint, attempt = 0, errors = 0, crashes = 0,
    replays = replays + 1, last_chance = %b, ended_at = null
where seq = any(%b::bigint[]);

-- :name lay
update {schema}.letter set disposition = %b where seq = any(%b::bigint[]);

-- :name cancel
update {schema}.course set state = 'cancelled', ended_at = %b::bigint where seq = any(%b::bigint[]);

-- :name record_deeds
insert into {schema}.deed (seq, position) select seq, %b::bigint from unnest(%b::bigint[]) as seq;
