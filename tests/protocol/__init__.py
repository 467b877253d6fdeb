"""The bucket protocol as a model: every interleaving in small bounds, and its traces on Redis."""
