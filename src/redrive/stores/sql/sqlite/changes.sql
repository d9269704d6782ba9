-- changes: items that are or were letters, in the order of the numbers of their last changes.
-- Inputs: numbers of items as a JSON array; a change number and how many. Outputs: change numbers.
-- Atomicity: the numbers of one write are consecutive and taken in its own savepoint, so their order is that of commits.

-- :name take
-- So many numbers; the last of them.
update sequence set n = n + ? where name = 'change' returning n;

-- :name number
-- After the number before the first.
insert into change (seq, n) select value, ?1 + 1 + key from json_each(?2) where true
on conflict (seq) do update set n = excluded.n;

-- :name gone
-- Items that are about to be pruned, as far as they have a number: their ids are kept.
update change set id = (select id from item where item.seq = change.seq)
where seq in (select value from json_each(?))
returning seq;

-- :name letters
-- Those of these items that are letters.
select seq from letter where seq in (select value from json_each(?));

-- :name read
select n, seq, id from change where n > ? order by n limit ?;
