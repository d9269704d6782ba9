-- What people do with letters: tags, and how long the trash keeps them. Applied in one transaction.

-- Labels of the few items that have any; item.ties has 128 for these, so that nobody looks for those of the others.
create table tag (
    tag text not null,
    seq integer not null,
    primary key (tag, seq)
) without rowid;
create index tag_seq on tag (seq);

-- From now on ended_at of a letter in the trash is when it was discarded. Of those that lie there nobody knows: their
-- time begins with this migration, so that none is removed before somebody could have known of it.
update item set ended_at = cast((julianday('now') - 2440587.5) * 86400000 as integer)
where seq in (select seq from letter where disposition = 'trash');
