-- Large bodies are kept packed. packing: 0 the body as it was given, 1 zlib behind its header (see stores/packing.py).
-- The crc of a payload is begun with this number and is that of the bytes as they lie here.

alter table payload add column packing integer not null default 0;
alter table result add column packing integer not null default 0;
