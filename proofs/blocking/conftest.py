from tests.support.scripts import run

__all__ = ["run"]
