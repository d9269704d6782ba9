from tests.support.broker import broker
from tests.support.families import pytest_generate_tests

__all__ = ["broker", "pytest_generate_tests"]
