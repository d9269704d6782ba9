"""What others may see: logs, and later metrics, health and alerts. All of it listens to `redrive.events`."""
