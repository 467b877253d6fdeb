"""What is in the store, counted and described: for commands, pages and metrics."""
