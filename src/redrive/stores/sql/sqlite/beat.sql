-- beat and workers: who is alive.
-- Inputs: worker, facts, now, until. Outputs: workers heard of since an instant.
-- Atomicity: one savepoint. What is a day old goes with it, and so do old lease requests.

-- :name beat
insert into worker (name, facts, seen_at, alive_until) values (?, ?, ?, ?)
on conflict (name) do update
set facts = excluded.facts, seen_at = excluded.seen_at, alive_until = excluded.alive_until;

-- :name forget
delete from worker where seen_at <= ?;

-- :name forget_nonces
delete from nonce where at <= ?;

-- :name workers
select name, facts, seen_at, alive_until > ? from worker where seen_at > ? order by alive_until > ? desc, name;
