-- configure: declares a queue and changes its settings.
-- Inputs: the queue; paused, by whom, why. Outputs: none. Atomicity: one statement.

-- :name declare
insert into {schema}.queue (name) values (%b) on conflict (name) do nothing;

-- :name pause
insert into {schema}.queue (name, paused, paused_by, paused_reason) values (%b, %b, %b, %b)
on conflict (name) do update
set paused = excluded.paused, paused_by = excluded.paused_by, paused_reason = excluded.paused_reason;
