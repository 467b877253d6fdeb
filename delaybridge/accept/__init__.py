"""Everything that decides whether a message is accepted: checked before anything is written.

`accept.py` checks and encodes a `Message`; `destination.py` and `headers.py` do so for these parts;
`instructions.py` reads what producers write into the headers of ordinary messages.
"""
