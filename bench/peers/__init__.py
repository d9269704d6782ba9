"""The peers beside us, each in its own words. Run by a Python of their own, so nothing of redrive is imported here.

Each is set up as its users would for speed; where a setting decides, `VARIANTS` names those to try.
"""

from __future__ import annotations

VARIANTS: dict[str, dict[str, tuple[int, ...]]] = {
    "sqlite": {"huey": (1,)},
    "postgres": {"pgqueuer": (100, 500, 1_000)},
    "redis": {
        "dramatiq": (1, 4, 8),
        "huey": (1, 4),
        "saq": (20, 50),
        "taskiq-list": (100,),
        "taskiq-stream": (100,),
        "arq": (200,),
        "rq": (1,),
    },
}
"""By engine. The number is how many jobs it takes at once: threads, tasks or the size of its batch."""
