"""Rigs: everything around the code under test; `tests/README.md` says when to use which."""
