"""Notices: what workers and other processes leave in Redis for operators, read for people."""
