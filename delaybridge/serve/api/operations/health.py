"""Health: whether this process answers, and whether messages go out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial

import msgspec

from delaybridge.client.verbs import Scope
from delaybridge.errors import DelayBridgeError, printable
from delaybridge.operate.views.described import unowned
from delaybridge.operate.views.stats import Stats
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.site import Site
from delaybridge.settings.urls import redact_text
from delaybridge.store.namespace.history_alarm import setbacks_text

_READY_S = 2.0
_LEASES = 2  # after these a bucket without a worker counts as stuck
_CHARS, _NAMED = 300, 20
routes = Routes()


class HealthAnswer(msgspec.Struct, omit_defaults=True):
    """status: ok or failing. reasons: why not; only for those with a token, if there are tokens."""

    status: str
    reasons: list[str] = []


@routes("GET /health/live", "Whether this process answers", scope=Scope.OPEN)
async def live(call: Call) -> HealthAnswer:
    """This process answers. Redis and the brokers do not count: a restart does not mend them."""
    return HealthAnswer("ok")


@routes(
    "GET /health/ready", "Whether messages go out", scope=Scope.OPEN,
    answers={200: HealthAnswer, 503: HealthAnswer},
)  # fmt: skip
async def ready(call: Call) -> Reply:
    """Messages are accepted and go out; with the reasons why not. Asked at most once a second."""
    site = call.site
    reasons = ["draining: it was told to stop"] if site.is_draining else []
    reasons += await site.readiness.answer(partial(_reasons, site))
    status = 503 if reasons else 200
    word = "failing" if reasons else "ok"
    if not call.who or call.tenant:  # anybody may ask, and learns no more than that
        return Reply(HealthAnswer(word), status)
    shown = [printable(redact_text(reason))[:_CHARS] for reason in reasons[:_NAMED]]
    return Reply(HealthAnswer(word, shown), status)


@routes("GET /metrics", "Show what this process answered", answers={200: None})
async def metrics(call: Call) -> Reply:
    """What this process answered, for Prometheus. With several processes, of the one that is asked.

    What the namespace holds is at the port of `delaybridge scan`.
    """
    text, media = call.site.traffic.text()
    return Reply(text, 200, {"Content-Type": media})


async def _reasons(site: Site) -> list[str]:
    """Why messages are not accepted, or do not go out. It costs a few commands for each bucket."""
    try:
        async with asyncio.timeout(_READY_S):
            return [*_obstacles(await site.client.stats(), site)]
    except TimeoutError:
        return [f"redis: no answer within {_READY_S:g} s"]
    except DelayBridgeError as exc:
        return [str(exc)]


def _obstacles(found: Stats, site: Site) -> Iterator[str]:
    """Why messages do not go out."""
    alone = unowned(found.buckets)
    now_s = time.monotonic()
    site.alone_since_s = {each: site.alone_since_s.get(each, now_s) for each in alone}
    longest_s = max((now_s - since_s for since_s in site.alone_since_s.values()), default=0.0)
    if longest_s > _LEASES * site.settings.lease.ttl_ms / 1000:
        yield f"{len(alone)} buckets have had no worker for up to {longest_s:.0f} s"
    brokers = [item for each in found.workers for item in (each.said.brokers or {}).items()]
    if brokers and all(reason is not None for _, reason in brokers):
        yield from (f"broker {name}: {reason}" for name, reason in dict(brokers).items())
    yield from map(str, found.refused)
    if found.unseen:
        yield f"{len(found.unseen)} Redis servers do not answer"
    if found.setbacks:
        yield setbacks_text(found.setbacks)
