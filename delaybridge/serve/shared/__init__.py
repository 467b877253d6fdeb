"""What every request passes, and what all requests of a process share."""
