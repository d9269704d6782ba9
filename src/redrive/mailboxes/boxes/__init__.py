"""A mailbox on a store: what is sent to it, how it is received, and where both are kept."""
