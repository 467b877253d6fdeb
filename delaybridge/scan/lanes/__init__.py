"""A lane for each exchange or topic, and what becomes of the copies in it.

In order: `lane` (with its copies and the window), `routing`, `parking`, `returning`, `outcomes`
(with the dispatch to brokers), `admission`; `lanes` makes one of each.
"""
