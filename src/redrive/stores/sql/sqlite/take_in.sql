-- take_in: letters of another store.
-- Inputs: items with the numbers given to them, their letters, attempts, terms and tags. Outputs: none.
-- Atomicity: one savepoint with counters, causes, routes, the audit entry and the deeds.

-- :name item
insert into item (seq, id, queue, state, enqueued_at, due_at, renewed_at, deliveries, attempt, errors, crashes, replays,
                  last_chance, omitted, worker, leased_at, ended_at, priority, ties, kind)
values (?, ?, ?, 'dead', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- :name revision
insert into revision (seq, number, at, actor, reason, body, packing, crc) values (?, ?, ?, ?, ?, ?, ?, ?);

-- :name letter
insert into letter (seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure,
                    route)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
