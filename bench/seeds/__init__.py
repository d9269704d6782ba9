"""Stores with a million rows in a minute: what the verbs would have written, written by plainer means.

tests/bench/test_seed.py lets the verbs do to each item what its rows tell, and compares all there is.
"""
