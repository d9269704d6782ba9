from tests.support.cli import on_store

__all__ = ["on_store"]
