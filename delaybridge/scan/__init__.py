"""The heart: claims due messages, fires them at their instant, publishes and settles them.

Start with `Scanner.scan` in `scanner.py`, the table of contents. Its steps are `Claiming`
(`wheel/claiming.py`), `Firing` and `Publishing` (`wheel/firing.py`) and `Settling`
(`leases/bucket_calls.py`). Everything runs on one event loop.

The rooms in order; each imports those before it only, also for types: `leases` (buckets, sessions,
and all calls to the store), `lanes` (where a copy goes, what stands in its way, how it ends, and
all calls to publishers), `wheel` (from the claim to the publish). Above them stand `mending` and
`reclaiming`, which come before a new session claims, `hang_detector` and `scanner`.
"""
