"""The worker's part: compares each bucket that it leases, and records what it did."""
