"""Metrics: totals counted from events."""
