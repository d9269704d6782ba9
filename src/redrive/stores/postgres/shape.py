"""The tables and indexes of the newest schema, with their columns: what `check` compares a database with."""

from __future__ import annotations

_TABLES = {
    "attempt": "seq, delivery, body",
    "cause": "cause, queue, n",
    "counter": "queue, ready, leased, done, open, archived, trash, cancelled",
    "course": (
        "seq, queue, state, due_at, renewed_at, deliveries, attempt, errors, crashes, "
        "replays, omitted, last_chance, alone, worker, leased_at, lease_until, ended_at"
    ),
    "deed": "seq, position",
    "document": "kind, key, version, body",
    "election": "name, owner, until",
    "item": "seq, id, queue, enqueued_at, crc, packing, body",
    "journal": "position, at, topic, actor, reason, request_id, change, body",
    "letter": "seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure",
    "nonce": "worker, nonce, at, seqs, deliveries",
    "queue": "name, paused, paused_by, paused_reason",
    "result": "seq, packing, body",
    "tombstone": "id, queue, state, payload_sha256, at, actor, reason",
    "worker": "name, facts, seen_at, alive_until",
}
_INDEXES = {
    "attempt_pkey": "seq, delivery",
    "course_alone": "worker",
    "course_leased": "queue",
    "course_pkey": "seq",
    "course_ready": "queue, crashes, due_at, seq",
    "deed_pkey": "seq, position",
    "document_pkey": "kind, key",
    "election_pkey": "name",
    "item_id": "id",
    "item_pkey": "seq",
    "journal_pkey": "position",
    "journal_request": "request_id",
    "journal_topic": "topic, position",
    "letter_category": "category, disposition, died_at, seq",
    "letter_cause": "cause, disposition, died_at, seq",
    "letter_cause_queue": "cause, queue, disposition, died_at, seq",
    "letter_died": "died_at, seq",
    "letter_disposition": "disposition, died_at, seq",
    "letter_error": "error_short, disposition, died_at, seq",
    "letter_pkey": "seq",
    "letter_queue": "queue, disposition, died_at, seq",
    "nonce_pkey": "worker",
    "queue_pkey": "name",
    "result_pkey": "seq",
    "tombstone_pkey": "id",
    "worker_pkey": "name",
}

SHAPE: dict[tuple[str, str], str] = {
    **{("table", name): columns for name, columns in _TABLES.items()},
    **{("index", name): columns for name, columns in _INDEXES.items()},
}
