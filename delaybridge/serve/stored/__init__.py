"""The store side of HTTP: its records beside the messages in Redis."""
