"""What else delays messages on the same machine, measured in the same way as delaybridge.

`python -m bench.peers`; one file for each peer, and what a peer is in `peer.py`.
"""
