-- gate, gates, set_gate: named dependencies, as leases of the queues behind them see them.
-- Inputs: the columns of a gate. Outputs: gates; the queues behind one.
-- Atomicity: one savepoint; the caller has compared the version in it.

-- :name all
select name, version, interval, burst, share, cap, floor, next_at, credit, floor_at, body from gate order by name;

-- :name keep
insert into gate (name, version, interval, burst, share, cap, floor, next_at, credit, floor_at, body)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (name) do update
set version = excluded.version, interval = excluded.interval, burst = excluded.burst, share = excluded.share,
    cap = excluded.cap, floor = excluded.floor, next_at = excluded.next_at, credit = excluded.credit,
    floor_at = excluded.floor_at, body = excluded.body;

-- :name behind
select name from queue where settings is not null and json_extract(cast(settings as text), '$.gate') = ?;
