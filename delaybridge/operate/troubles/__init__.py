"""Troubles: everything that can be wrong, each listed once, and which of it is wrong now."""
