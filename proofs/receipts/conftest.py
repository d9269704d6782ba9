from tests.support.broker import broker

__all__ = ["broker"]
