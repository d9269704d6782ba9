-- Letters by cause, error or category, each also within a queue, in the order of find: newest first.
-- Looking always names a disposition, so it stands before died_at; a queue between would break the order.
drop index letter_cause;
drop index letter_error;
drop index letter_category;
create index letter_cause on letter (cause, disposition, died_at);
create index letter_cause_queue on letter (cause, queue, disposition, died_at);
create index letter_error on letter (error_short, disposition, died_at);
create index letter_error_queue on letter (error_short, queue, disposition, died_at);
create index letter_category on letter (category, disposition, died_at);
create index letter_category_queue on letter (category, queue, disposition, died_at);
