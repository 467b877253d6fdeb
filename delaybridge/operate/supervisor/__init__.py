"""Several processes on one machine, each started by a parent that replaces it when it dies."""
