"""`redrive db …`: the data themselves.

It works through the store's upkeep and not through an app: looking must not migrate, and some data can be looked at but
not opened.
"""

from redrive.cli.root import LazyGroup

db = LazyGroup(
    "db",
    {
        "status": "redrive.cli.db.status:status",
        "check": "redrive.cli.db.check:check",
        "backup": "redrive.cli.db.backup:backup",
        "migrate": "redrive.cli.db.schema:migrate",
        "sql": "redrive.cli.db.schema:sql",
        "keys": "redrive.cli.db.encryption:keys",
        "reencrypt": "redrive.cli.db.encryption:reencrypt",
    },
    help="""The database itself: its state, its soundness, copies, its schema, and its encryption keys.

\b
Examples:
  redrive db status
  redrive db check
  redrive db backup backup.db
  redrive db migrate --dry-run
  redrive db sql --engine postgres
  redrive db keys
""",
)
