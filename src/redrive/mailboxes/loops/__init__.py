"""Loops that work on the messages of a mailbox, and what becomes of each message."""
