"""The tables and indexes of the newest schema, with their columns: what `check` compares a database with."""

from __future__ import annotations

_TABLES = {
    "agenda": "turn, family, queue, next_at",
    "aside": "queue, key, seq",
    "attempt": "seq, delivery, body",
    "cause": "cause, queue, n, route",
    "change": "seq, n, id",
    "unnumbered": "place, seq, id",
    "counter": "queue, ready, leased, done, open, archived, trash, cancelled, held, parked",
    "course": (
        "seq, queue, state, due_at, renewed_at, deliveries, attempt, errors, crashes, replays, "
        "omitted, last_chance, alone, worker, leased_at, lease_until, ended_at, priority, hold, ties, level, kind"
    ),
    "dedupe": "scope, key, seq, id, until",
    "deed": "seq, position",
    "document": "kind, key, version, body",
    "edge": "awaited, waiting",
    "election": "name, owner, until",
    "follower": "queue, key, place, seq",
    "gate": "name, version, interval, burst, share, cap, floor, next_at, credit, floor_at, body",
    "item": "seq, id, queue, enqueued_at, crc, packing, body, release",
    "journal": "position, at, topic, actor, reason, request_id, change, body",
    "letter": (
        "seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure, route, reserved"
    ),
    "line": "queue, key, head, waiting, status, gap",
    "member_counter": "queue, ready, leased, done, open, archived, trash, cancelled, held, parked",
    "member_moved": "queue",
    "nonce": "worker, lane, nonce, at, seqs, deliveries",
    "pace": "queue, full_at",
    "queue": (
        "name, paused, paused_by, paused_reason, max_running, max_per_key, rate_count, rate_per, rate_burst, "
        "capacity, order_mode, policy, gate, keep, keep_results, retry_share, keep_trash, encrypt"
    ),
    "recall": (
        "seq, deliveries, due_at, renewed_at, attempt, errors, crashes, last_chance, ended_at, queue, reason, died_at, "
        "disposition, cause, error, error_short, category, rule, failure, route, place, gap, role"
    ),
    "result": "seq, packing, body",
    "revision": "seq, number, at, actor, reason, body, packing, crc",
    "route": "name, capacity",
    "slot": "queue, key, running",
    "tag": "tag, seq",
    "terms": (
        "seq, queue, order_key, place, limit_key, scope, dedupe_key, until, after, dies, body, gap, cancel, parked"
    ),
    "tombstone": "id, queue, state, payload_sha256, at, actor, reason",
    "worker": "name, facts, seen_at, alive_until",
}
_INDEXES = {
    "agenda_next": "family, next_at, turn",
    "agenda_pkey": "queue, turn",
    "aside_pkey": "queue, key, seq",
    "attempt_pkey": "seq, delivery",
    "change_n": "n",
    "change_pkey": "seq",
    "course_alone": "worker",
    "course_leased": "queue",
    "course_pkey": "seq",
    "course_ready": "hold, queue, kind, level, due_at, seq",
    "dedupe_pkey": "scope, key",
    "dedupe_until": "until",
    "deed_pkey": "seq, position",
    "document_pkey": "kind, key",
    "edge_pkey": "awaited, waiting",
    "edge_waiting": "waiting",
    "election_pkey": "name",
    "follower_pkey": "queue, key, place",
    "gate_pkey": "name",
    "item_id": "id",
    "item_pkey": "seq",
    "journal_pkey": "position",
    "journal_request": "request_id",
    "journal_topic": "topic, position",
    "letter_category": "category, disposition, died_at, seq",
    "letter_category_queue": "category, queue, disposition, died_at, seq",
    "letter_cause": "cause, disposition, died_at, seq",
    "letter_cause_queue": "cause, queue, disposition, died_at, seq",
    "letter_died": "died_at, seq",
    "letter_disposition": "disposition, died_at, seq",
    "letter_error": "error_short, disposition, died_at, seq",
    "letter_error_queue": "error_short, queue, disposition, died_at, seq",
    "letter_pkey": "seq",
    "letter_queue": "queue, disposition, died_at, seq",
    "letter_reserved": "reserved, died_at, seq",
    "letter_route": "route, disposition, died_at, seq",
    "line_pkey": "queue, key",
    "member_counter_queue": "queue",
    "nonce_pkey": "worker, lane",
    "pace_pkey": "queue",
    "queue_capacity": "name",
    "queue_encrypted": "name",
    "queue_family_capacity": "name",
    "queue_gate": "gate",
    "queue_limited": "name",
    "queue_pkey": "name",
    "recall_pkey": "seq",
    "result_pkey": "seq",
    "revision_pkey": "seq, number",
    "route_pkey": "name",
    "slot_pkey": "queue, key",
    "tag_pkey": "tag, seq",
    "tag_seq": "seq",
    "terms_pkey": "seq",
    "tombstone_pkey": "id",
    "worker_pkey": "name",
}

SHAPE: dict[tuple[str, str], str] = {
    **{("table", name): columns for name, columns in _TABLES.items()},
    **{("index", name): columns for name, columns in _INDEXES.items()},
}
