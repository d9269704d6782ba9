"""The PostgreSQL store, for workers on many machines. Needs psycopg: `pip install "redrive[postgres]"` brings it."""

from redrive.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
