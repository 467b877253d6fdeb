"""The catalog: every metric with its type, its labels and its meaning, as `catalog.toml` has it.

docs/metrics.md shows it, and a test compares them.
"""

from __future__ import annotations

from importlib.resources import files

import msgspec

PREFIX = "delaybridge_"


class Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """kind: counter, gauge, histogram or info. alert: what an operator may alert on.

    of_redis: a counter that Redis has: absent while it does not answer, for a total may not fall.
    """

    kind: str
    means: str
    labels: tuple[str, ...] = ()
    alert: str = ""
    of_redis: bool = False


_TEXT = files("delaybridge.operate.metrics").joinpath("catalog.toml").read_bytes()
METRICS = msgspec.toml.decode(_TEXT, type=dict[str, Metric])
"""Name without the prefix -> the metric, in the order of the page."""
