"""Views of the store: its contents counted and described, for commands, pages and metrics."""
