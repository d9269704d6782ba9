from tests.support.families import pytest_generate_tests
from tests.support.lab import lab, memory_lab

__all__ = ["lab", "memory_lab", "pytest_generate_tests"]
