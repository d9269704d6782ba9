from tests.stores.conftest import opened, path, quick_path

__all__ = ["opened", "path", "quick_path"]
