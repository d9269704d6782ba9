"""Groups of loops, and the base of loops that receive."""
