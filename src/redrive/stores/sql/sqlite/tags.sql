-- tags: labels that people gave items. Most items have none, and then nobody looks here.
-- Inputs: tags and numbers of items as JSON arrays. Outputs: the tags of items.
-- Atomicity: part of the verb's own savepoint.

-- :name of
select seq, tag from tag where seq in (select value from json_each(?));

-- :name of_one
select tag from tag where seq = ? order by tag;

-- :name add
insert into tag (tag, seq)
select label.value, meant.value from json_each(?) label cross join json_each(?) meant
where true
on conflict (tag, seq) do nothing;

-- :name remove
delete from tag where tag in (select value from json_each(?)) and seq in (select value from json_each(?));

-- :name mark
-- Whether these items have any.
update item
set ties = case when exists (select 1 from tag where tag.seq = item.seq) then ties | 128 else ties & ~128 end
where seq in (select value from json_each(?));

-- :name insert
insert into tag (tag, seq) values (?, ?);

-- :name forget
delete from tag where seq in (select value from json_each(?));
