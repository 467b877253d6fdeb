"""The process: its socket, what its requests share, and the table of endpoints."""
