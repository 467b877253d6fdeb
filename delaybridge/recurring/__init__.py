"""Recurring messages, without I/O: what a definition says, when its runs are due, what to make now.

`definition.py` is a definition and its check, `cron.py` the due times, `template.py` the
placeholders, `plan.py` what a worker makes and what was missed.
"""
