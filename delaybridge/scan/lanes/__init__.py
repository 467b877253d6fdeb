"""A lane for each exchange or topic, and what becomes of the copies in it.

In order: `lane`, `copy`, `window`, `routing`, `parking` and `returning`, `dispatch`, `outcomes`,
`admission`; `lanes` makes one of each.
"""
