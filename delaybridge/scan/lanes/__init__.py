"""A lane for each exchange or topic, and what becomes of the copies in it."""
