"""KEDA and the HorizontalPodAutoscaler, as they decide by one number: on a clock that is passed in.

The formula is that of `autoscaling/v2` for an external metric of the type AverageValue, with the
behaviour that the ScaledObject of deploy/kustomize asks for. `simulated` runs it on a load.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

MANIFEST = Path(__file__).parents[2] / "deploy/kustomize/components/keda/scaling.yaml"
SYNC_S = 15  # how often the autoscaler looks
TOLERANCE = 0.1  # so near to the target nothing is changed


class Autoscaler:
    """How many pods there should be, of a ScaledObject."""

    def __init__(self, spec: Mapping[str, Any], *, target: float = 0, most: int = 0) -> None:
        """target, most: instead of those of the ScaledObject."""
        (trigger,) = spec["triggers"]
        self.target = target or float(trigger["metadata"]["targetValue"])
        self.field = trigger["metadata"]["valueLocation"]
        self.least, self.most = spec["minReplicaCount"], most or spec["maxReplicaCount"]
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        self._up, self._down = behavior["scaleUp"], behavior["scaleDown"]
        self._wanted: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()

    def decide(self, now_s: float, value: float, current: int) -> int:
        """The number of pods from now on, if there are `current` ones. value: of the metric."""
        share = value / (self.target * current)
        wanted = current if abs(share - 1) <= TOLERANCE else math.ceil(value / self.target)
        wanted = min(max(wanted, self.least), self.most)
        self._wanted.append((now_s, wanted))
        for_s = self._down["stabilizationWindowSeconds"]
        while self._wanted[0][0] < now_s - for_s:
            self._wanted.popleft()
        if wanted < current:
            wanted = min(current, max(each for _, each in self._wanted))
        (up,), (down,) = self._up["policies"], self._down["policies"]
        if wanted > current:
            began = current - self._changed(now_s, up["periodSeconds"], 1)
            wanted = min(wanted, math.ceil(began * (1 + up["value"] / 100)))
        elif wanted < current:
            began = current + self._changed(now_s, down["periodSeconds"], -1)
            wanted = max(wanted, math.floor(began * (1 - down["value"] / 100)))
        self._changes.append((now_s, wanted - current))
        return wanted

    def _changed(self, now_s: float, period_s: float, sign: int) -> int:
        """How many were added (sign 1) or removed within the period."""
        return sum(max(0, by * sign) for at_s, by in self._changes if at_s > now_s - period_s)


def of_the_chart(*, target: float = 0, most: int = 0) -> Autoscaler:
    """With the ScaledObject of this repository."""
    for each in yaml.safe_load_all(MANIFEST.read_text()):
        if each and each["kind"] == "ScaledObject":
            return Autoscaler(each["spec"], target=target, most=most)
    raise LookupError(MANIFEST)


class Simulated(NamedTuple):
    """late_s: of the message that was the latest. pods: how many there were, second by second."""

    late_s: float
    pods: list[int]


def simulated(
    scaler: Autoscaler,
    rate: Callable[[float], float],
    *,
    seconds: int,
    capacity: float,
    pod_s: int,
    ahead_s: int = 60,
) -> Simulated:
    """A load of `rate(t)` messages a second, of which each pod publishes `capacity`, in order.

    pod_s: from the decision until a pod publishes. ahead_s: how far the metric looks.
    """
    starts = [-pod_s] * scaler.least  # when each pod was wanted
    pods, late_s, due, sent = [], 0.0, 0.0, 0.0
    arrived = deque([(0.0, 0.0)])  # how many were due until then
    for now_s in range(seconds):
        due += rate(now_s)
        arrived.append((now_s + 1.0, due))
        ready = sum(at_s + pod_s <= now_s for at_s in starts)
        sent = min(due, sent + ready * capacity)
        while len(arrived) > 1 and arrived[1][1] <= sent:
            arrived.popleft()
        if sent < due:
            late_s = max(late_s, now_s + 1 - arrived[1][0])
        if now_s % SYNC_S == 0:
            coming = sum(rate(now_s + 1 + second) for second in range(ahead_s))
            wanted = scaler.decide(now_s, due - sent + coming, len(starts))
            starts = [*starts, *[now_s] * (wanted - len(starts))][:wanted]
        pods.append(len(starts))
    return Simulated(late_s, pods)
