"""Remote control: what running workers are asked to do, over the channel that wakes them.

A worker that is asked acts at once and answers nothing: what it does shows in its announcement. One
that is just connecting to Redis again does not hear it: ask again. Whoever may publish on the
namespace's channel may ask, as whoever may write its keys may take every lease.
"""

from __future__ import annotations

from delaybridge.errors import MessageError, quoted
from delaybridge.operate.notices import announcements
from delaybridge.operate.notices.announcements import WorkerInfo
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.announcements import DRAIN, RECONNECT
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import RedisCommand, Steps, plain


def ask_to_drain(calls: Namespace, worker: str) -> Steps[WorkerInfo]:
    """Ask a worker to give its buckets back and to end, as SIGTERM does.

    Returns it as it had announced itself. MessageError: `unknown_worker`: none of that name
    runs; `worker_too_old`: it is too old to be asked. Then no worker was asked.
    """
    living = yield from living_workers(calls)
    found = next((each for each in living if each.name == worker), None)
    if found is None:
        detail = f"no worker {quoted(worker)} runs; see: delaybridge worker ls"
        raise MessageError("unknown_worker", "worker", detail)
    if not found.instance:
        hint = "send SIGTERM to its process"
        raise MessageError("worker_too_old", "worker", f"it is too old to be asked; {hint}")
    yield [_ask(calls.namespace, DRAIN, found.instance)]
    return found


def ask_to_reconnect(calls: Namespace, broker: str) -> Steps[list[str]]:
    """Ask all workers to replace their connections to a broker; leases are kept.

    What a broker has not confirmed yet may still be confirmed on the old connection. Returns
    the names of the workers asked. MessageError: `unknown_broker`: none that can be asked
    publishes to it.
    """
    living = yield from living_workers(calls)
    asked = [w.name for w in living if w.instance and broker in (w.said.brokers or {})]
    if not asked:
        detail = f"no worker publishes to {quoted(broker)}; see: delaybridge worker ls"
        raise MessageError("unknown_broker", "broker", detail)
    yield [_ask(calls.namespace, RECONNECT, broker)]
    return asked


def living_workers(calls: Namespace) -> Steps[list[WorkerInfo]]:
    """The workers whose announcements have not expired."""
    yield from calls.open()
    *replies, now_us = yield [*registry.fleet(calls.namespace), calls.clock()]
    return announcements.workers(replies, now_us // 1000)


def _ask(namespace: str, verb: str, of: str) -> RedisCommand[int]:
    # How many heard it says nothing: a Cluster counts those of one server, and others listen, too.
    return plain("PUBLISH", keys.wake(namespace), f"{verb} {of}", parse=int)
