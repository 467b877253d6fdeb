"""Compares delaybridge with other ways to delay messages: `python -m bench.peers`.

Each peer has a file of its own; `peer.py` names the figures measured of each.
"""
