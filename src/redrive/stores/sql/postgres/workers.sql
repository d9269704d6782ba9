-- workers: who is alive, or was within the last day.
-- Inputs: the pinned instant or null, how long ago counts. Outputs: workers, alive ones first.
-- Atomicity: one statement, so one picture.

-- :name workers
select w.name, w.facts, w.seen_at, w.alive_until > clock.now
from (select {schema}.now_ms(%b::bigint) as now) clock
join {schema}.worker w on w.seen_at > clock.now - %b::bigint
order by w.alive_until > clock.now desc, w.name;
