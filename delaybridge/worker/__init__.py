"""The processes: what a worker is made of, how it starts, reloads, logs and ends."""
