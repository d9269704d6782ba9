"""A disk whose power can be cut: a FUSE file system that knows what was synced, what was not, and how to fail."""
