"""What tests need besides the code under test; `tests/README.md` says when to use which."""
