"""What serving keeps in Redis: jobs, sessions, keys of requests that act once."""
