"""A bucket's lease, and the session from acquire to release."""
