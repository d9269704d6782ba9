-- Letters by error or category within a queue, in the order of find: newest first.
-- Without them, names that never meet are looked for among all the letters of one of them.

create index letter_error_queue on {schema}.letter (error_short, queue, disposition, died_at, seq);
create index letter_category_queue on {schema}.letter (category, queue, disposition, died_at, seq);
