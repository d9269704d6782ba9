from tests.support.families import pytest_generate_tests

__all__ = ["pytest_generate_tests"]
