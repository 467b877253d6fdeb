"""A bucket compared with its rows, and what is missing restored."""
