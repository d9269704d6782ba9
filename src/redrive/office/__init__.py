"""The dead letter office: what an operator can do. CLI, API and console use this and nothing else."""
