"""A bucket's lease, the session from acquire to release, and its calls to the store."""
