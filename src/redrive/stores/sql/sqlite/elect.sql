-- elect: at most one owner per name.
-- Inputs: name, owner, until, now. Outputs: rows changed (0: somebody else leads).
-- Atomicity: one statement.

-- :name elect
insert into election (name, owner, until) values (?, ?, ?)
on conflict (name) do update set owner = excluded.owner, until = excluded.until
where election.owner = excluded.owner or election.until <= ?;
