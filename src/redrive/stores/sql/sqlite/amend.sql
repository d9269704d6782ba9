-- amend: moves items nobody holds. The caller has checked each against core.acts.refusal in the same write.
-- Inputs: numbers of items as a JSON array. Outputs: none.
-- Atomicity: one savepoint with letters, counters, causes, the audit entry and the deeds.

-- :name done_before
-- Which of these items an earlier amend with this change and request id changed.
select d.seq from journal j indexed by journal_request
cross join json_each(?) meant cross join deed d on d.position = j.position and d.seq = meant.value
where j.request_id = ? and j.change <> '' and j.change = ?;

-- :name leased_letters
-- Those of these letters that have a lease: who works on it, or nobody if it ran out by now.
select seq, case when lease_until > ? then worker else '' end from item
where seq in (select value from json_each(?)) and state = 'dead' and lease_until is not null;

-- :name take_away
-- From whoever let the lease run out: what others have in hand now is not his to end.
update item set deliveries = deliveries + 1, lease_until = null where seq in (select value from json_each(?));

-- :name replay
update item
set state = 'ready', due_at = ?, renewed_at = ?, attempt = 0, errors = 0, crashes = 0, replays = replays + 1,
    last_chance = ?, ended_at = null
where seq in (select value from json_each(?));

-- :name reserved
-- Those of these letters that are reserved, and for which replay.
select seq, reserved from letter where seq in (select value from json_each(?)) and reserved <> '';

-- :name reserve
update letter set reserved = ? where seq in (select value from json_each(?));

-- :name drop_letters
delete from letter where seq in (select value from json_each(?));

-- :name lay
update letter set disposition = ? where seq in (select value from json_each(?));

-- :name discarded
update item set ended_at = ? where seq in (select value from json_each(?));

-- :name restored
update item set ended_at = (select died_at from letter where letter.seq = item.seq)
where seq in (select value from json_each(?));

-- :name move
update item set queue = ? where seq in (select value from json_each(?));

-- :name move_letters
update letter set queue = ? where seq in (select value from json_each(?));

-- :name cancel
update item set state = 'cancelled', ended_at = ?, hold = 0, ties = ties & ~256 where seq in (select value from json_each(?));

-- :name run_now
update item set due_at = ? where seq in (select value from json_each(?));

-- :name run_now_anew
update item set due_at = ?1, renewed_at = ?1, attempt = 0, errors = 0, crashes = 0, last_chance = 0
where seq in (select value from json_each(?2));

-- :name set_policy
-- The terms with another policy, or null where they say nothing else.
insert into terms (seq, body) values (?, ?) on conflict (seq) do update set body = excluded.body;

-- :name mark_terms
update item set ties = ties | 64 where seq in (select value from json_each(?));

-- :name park
-- Whatever they waited for is found again when they are unparked.
update item set hold = 4, ties = ties | 320 where seq in (select value from json_each(?));

-- :name label
insert into terms (seq, parked) select value, ?2 from json_each(?1) where true
on conflict (seq) do update set parked = excluded.parked;

-- :name unpark
update item set hold = ?, ties = ties & ~256 where seq = ?;

-- :name keep_revision
-- The payload as it is, damaged or not.
insert into revision (seq, number, at, actor, reason, body, packing, crc)
select seq, ?2, ?3, ?4, ?5, body, packing, crc from payload where seq = ?1;

-- :name edit
update payload set body = ?, packing = ?, crc = ? where seq = ?;

-- :name record_deeds
insert into deed (position, seq) select ?, value from json_each(?);
