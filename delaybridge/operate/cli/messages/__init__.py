"""Commands that act on messages."""
