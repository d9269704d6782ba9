-- wake: tells those who wait in other processes that something may be due.
-- Inputs: the channel, and what to say on it. Outputs: none.
-- Atomicity: one statement, after the commit of what it is about and never together with it.

-- :name notify
select pg_notify(%b::text, note) from unnest(%b::text[]) as o (note);
