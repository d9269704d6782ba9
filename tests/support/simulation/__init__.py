"""Deterministic simulation: the real engine on a simulated clock, network and scheduler, all drawn from one seed."""
