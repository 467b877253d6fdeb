"""Small mistakes that somebody might make in any room; the tests must notice each.

`python -m tests.mutants` makes each in a copy of the tree, and runs the tests of its room there.
"""
