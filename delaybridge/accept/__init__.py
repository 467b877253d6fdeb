"""Everything that decides whether a message is accepted: checked before anything is written.

`accept.py` checks and encodes a `Message`; `destination.py` checks destinations and retry plans,
`headers.py` headers and properties.
"""
