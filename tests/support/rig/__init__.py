"""The fault rig: real processes, ground truth outside the tested store, and a checker that names what went wrong."""
