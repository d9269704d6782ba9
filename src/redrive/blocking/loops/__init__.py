"""Blocking loops of one process: threads with heartbeats, a watchdog, lease extension and one shutdown."""
