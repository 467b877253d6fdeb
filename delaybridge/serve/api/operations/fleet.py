"""The fleet: workers, ingest processes, buckets, who serves which; and the alarm."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from delaybridge.client.verbs import Scope
from delaybridge.operate.notices import alarms
from delaybridge.operate.notices.announcements import FrontInfo, IngestInfo, WorkerInfo
from delaybridge.operate.notices.repairs import Orphans
from delaybridge.operate.views.bucket_counts import BucketStats
from delaybridge.operate.views.described import plain
from delaybridge.operate.views.remote_control import ask_to_drain, ask_to_reconnect
from delaybridge.resize import resizing
from delaybridge.resize.resizing import ResizeProgress
from delaybridge.serve.api.description.openapi import object_of
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.shared.call import Call
from delaybridge.store.calls import Calls
from delaybridge.store.namespace.history_alarm import Setback
from delaybridge.store.protocol.keys import bucket_key
from delaybridge.store.protocol.verbs import Steps

routes = Routes()


class Workers(msgspec.Struct):
    """The living processes."""

    items: list[object_of(WorkerInfo)]  # type: ignore[valid-type]
    ingests: list[object_of(IngestInfo)]  # type: ignore[valid-type]
    fronts: list[object_of(FrontInfo)]  # type: ignore[valid-type]


class Buckets(msgspec.Struct):
    """All buckets, in order of their numbers. unseen: numbers of those whose server is silent.

    resize: how far messages have moved to another number of buckets; `to` is null if none move.
    """

    items: list[object_of(BucketStats)]  # type: ignore[valid-type]
    unseen: list[int]
    resize: object_of(ResizeProgress)  # type: ignore[valid-type]


class NewBuckets(msgspec.Struct, forbid_unknown_fields=True):
    """buckets: how many there are to be. paused: true: no other bucket begins; false: go on."""

    buckets: int | None = None
    paused: bool | None = None
    dry_run: bool = False


class AskedWorker(msgspec.Struct):
    """The worker that was asked. It leaves the list of workers once it drains."""

    worker: str


class AskedWorkers(msgspec.Struct):
    """broker: whose connections are replaced. workers: those that were asked."""

    broker: str
    workers: list[str]


class AlarmAnswer(msgspec.Struct):
    """alarm: what happened, in words; null if nothing did. mended: by bucket."""

    alarm: str | None
    setbacks: list[object_of(Setback)]  # type: ignore[valid-type]
    mended: dict[str, object_of(Orphans)]  # type: ignore[valid-type]


class Cleared(msgspec.Struct):
    """Whether there was an alarm."""

    cleared: bool


@routes("GET /v1/workers", "List workers, ingest processes and fronts", answer=Workers)
async def workers(call: Call) -> Any:
    """The running workers and ingest processes, and the fronts with up to 200 connections each."""
    found = await call.site.client.stats()
    kinds = {"items": found.workers, "ingests": found.ingests, "fronts": found.fronts}
    return {name: plain(each) for name, each in kinds.items()}


@routes(
    "POST /v1/workers/{worker}:drain", "Drain a worker", scope=Scope.ADMIN, is_audited=True,
    answers={202: AskedWorker, 404: None, 409: None},
)  # fmt: skip
async def drain(call: Call) -> Reply:
    """Ask a worker to give its buckets back and to end, as SIGTERM does.

    Others take its buckets at once. Whatever supervises it may start it again.
    """
    name = call.path["worker"]
    await call.site.client.run(lambda calls: ask_to_drain(calls, name))
    return Reply(AskedWorker(name), 202)


@routes(
    "POST /v1/brokers/{broker}:reconnect", "Reconnect to a broker", scope=Scope.ADMIN,
    is_audited=True, answers={202: AskedWorkers, 404: None},
)  # fmt: skip
async def reconnect(call: Call) -> Reply:
    """Ask all workers to replace their connections to a broker; nothing is lost."""
    name = call.path["broker"]
    asked = await call.site.client.run(lambda calls: ask_to_reconnect(calls, name))
    return Reply(AskedWorkers(name, asked), 202)


@routes("GET /v1/buckets", "List buckets and their owners", answer=Buckets)
async def buckets(call: Call) -> Any:
    """The buckets, their content and owners."""
    found = await call.site.client.stats()
    unseen = [number for each in found.unseen for number in each.buckets]
    resize = plain(await call.site.client.run(resizing.progress))
    return {"items": plain(found.buckets), "unseen": sorted(unseen), "resize": resize}


@routes(
    "POST /v1/buckets:resize", "Give the namespace another number of buckets", scope=Scope.ADMIN,
    is_audited=True, body=NewBuckets, answer=object_of(ResizeProgress),
)  # fmt: skip
async def resize(call: Call) -> Any:
    """Workers move all messages, while it works; or pause that, or go on. See `bucket resize`."""
    asked: NewBuckets = call.body
    run = call.site.client.run
    if (count := asked.buckets) is not None:
        await run(lambda calls: resizing.begin(calls, count, dry=asked.dry_run))
    if (paused := asked.paused) is not None and not asked.dry_run:
        await run(lambda calls: resizing.pause(calls, paused=paused))
    return plain(await run(resizing.progress))


@routes("GET /v1/alarm", "Show whether Redis lost something", answer=AlarmAnswer)
async def alarm(call: Call) -> Any:
    """Whether Redis came back with an older past, empty or without some keys."""
    found = await call.site.client.run(lambda calls: alarms.read(calls.namespace))
    return found.data


@routes("DELETE /v1/alarm", "Clear the alarm", scope=Scope.ADMIN, is_audited=True)
async def clear_alarm(call: Call) -> Cleared:
    """Go on with what Redis has now: workers of a wiped namespace start again."""
    return Cleared(await call.site.client.run(lambda calls: alarms.clear(calls.namespace)))


class TopologyServer(msgspec.Struct, rename="camel"):
    """A worker. last_heart_beat: epoch milliseconds. serve_keys: of the buckets that it holds."""

    last_heart_beat: int
    addr: str
    serve_keys: list[str]


@routes("GET /topology", "Show which worker serves which buckets", answer=dict[str, TopologyServer])
async def topology(call: Call) -> Any:
    """The living workers by name, each with the keys in Redis that it serves, as xtimer tells it.

    addr: HOST:PID, for workers listen on no port that messages come through.
    """
    client, settings = call.site.client, call.site.settings
    births = await client.run(_births)
    found = await client.stats()
    keys: dict[str | None, list[str]] = defaultdict(list)
    for bucket in found.buckets:
        birth = births.get(bucket.bucket, "")
        keys[bucket.owner].append(bucket_key(settings.namespace, bucket.bucket, "due", birth))
    return {
        worker.name: TopologyServer(
            min(found.now_ms, worker.expires_ms - settings.lease.ttl_ms),
            f"{worker.host}:{worker.pid}",
            keys[worker.name],
        )
        for worker in found.workers
    }


def _births(calls: Calls) -> Steps[dict[int, str]]:
    buckets = yield from calls.every_bucket()
    return {bucket.number: bucket.birth for bucket in buckets}
