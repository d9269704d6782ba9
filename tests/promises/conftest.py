from tests.support.lab import lab, memory_lab

__all__ = ["lab", "memory_lab"]
