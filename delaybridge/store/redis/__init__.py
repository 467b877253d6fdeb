"""Connections to Redis: one server, a Cluster, behind Sentinels."""
