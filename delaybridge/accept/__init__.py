"""Everything that decides whether a message is accepted: checked before anything is written.

`accept.py` checks and encodes a `Message`; `destination.py`, `headers.py` and `plan.py` do so for
these parts; `instructions.py` reads what producers write into the headers of ordinary messages.
"""
