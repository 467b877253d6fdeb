"""A namespace gets another number of buckets while it works: messages move, a page at a time.

`resizing` is what an operator asks for; `mover` is the part of a worker that does it.
docs/inside-fleet.md tells how; tests/protocol/resize.py is the model.
"""
