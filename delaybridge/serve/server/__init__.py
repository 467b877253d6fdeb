"""The process: its socket and its children, the table of endpoints, mounting in another app."""
