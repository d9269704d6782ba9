"""Webhooks: accepted, kept, delivered in order, and given up visibly."""
