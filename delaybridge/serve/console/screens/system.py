"""The store, its checks, the settings, jobs with the audit, and the form that publishes."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import msgspec

from delaybridge.client.verbs import Scope
from delaybridge.serve.api.messages.shapes import StoredMessage, shape_of
from delaybridge.serve.api.operations.deployment import checked, facts_of, settings_in_force
from delaybridge.serve.console.bodies import is_kept_by_fields
from delaybridge.serve.console.page import Pages
from delaybridge.serve.console.rendering import link
from delaybridge.serve.console.snapshot import snapshots_of
from delaybridge.serve.shared.audit import AuditQuery, note_reading, records
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.jobs import all_jobs
from delaybridge.settings.urls import redact_text

SHOWN = {
    "Version": ("redis_version",),
    "Version of Valkey": ("valkey_version",),
    "Role": ("role",),
    "Memory used": ("used_memory_human",),
    "Memory limit": ("maxmemory_human",),
    "When full": ("maxmemory_policy",),
    "Append-only file": ("aof_enabled",),
    "Last write to it": ("aof_last_write_status",),
    "Last snapshot": ("rdb_last_bgsave_status",),
    "Replicas": ("connected_slaves",),
    "Clients": ("connected_clients",),
    "Operations/s": ("instantaneous_ops_per_sec",),
    "Up for": ("uptime_in_seconds",),
}
"""Label -> fields of INFO."""
DRAWN = {
    "used_memory": "used_memory_human",
    "instantaneous_ops_per_sec": "instantaneous_ops_per_sec",
}
"""Field that is drawn as a line -> beside which one."""
pages = Pages()


class PublishQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from"}):
    """destination: what the form begins with. from, key: of a message that it copies."""

    destination: str = ""
    source: str = ""
    key: str | None = None


@pages("/store", "Store")
async def store(call: Call) -> dict[str, Any]:
    """Redis as it is now."""
    snapshots, facts = snapshots_of(call.site), await facts_of(call)
    stats = await snapshots.stats()
    snapshots.store_sparks.note(
        {
            f"{s.node} {name}": float(s.info[name])
            for s in facts.servers
            for name in DRAWN
            if name in s.info
        }
    )
    return {
        "api": "/v1/store",
        "facts": facts,
        "drawn": DRAWN,
        "line": snapshots.store_sparks.line,
        "shown": SHOWN,
        "redis": redact_text(call.site.settings.redis.url),
        "durability": call.site.settings.durability,
        "ledger": stats.ledger,
        "cautions": [c for c in call.site.settings.cautions() if c.startswith(("redis", "ledger"))],
    }


@pages("/store/checks", "Checks", name="checks", scope=Scope.ADMIN, is_blind=True)
async def checks(call: Call) -> dict[str, Any]:
    """What `delaybridge doctor` finds, checked by this server."""
    found = checked(await call.site.doctor.findings())
    return {"api": "/v1/checks", "found": found, "at_ms": time.time_ns() // 1_000_000}


@pages("/settings", "Settings", scope=Scope.ADMIN, is_safe=True)
async def settings(call: Call) -> dict[str, Any]:
    """All settings with their sources, and versions."""
    return {"api": "/v1/settings", "found": settings_in_force(call.site.settings)}


@pages("/publish", "Publish", query=PublishQuery, scope=Scope.WRITE)
async def publish(call: Call) -> dict[str, Any]:
    """A form, filled from a message if one is named."""
    query: PublishQuery = call.query
    client = call.site.client
    found = await client.get(query.source, key=query.key) if query.source else None
    one = shape_of(found, with_body=call.may_read_bodies) if found else None
    if one is not None:
        await note_reading(call, one.id)
    places = await client.destinations()
    return {
        "api": "/v1/messages",
        "places": [each.place for each in places.places if ":" in each.place],
        "source": query.source,
        "filled": _filled(one),
        "destination": found.destination if found else query.destination,
    }


def _filled(one: StoredMessage | None) -> dict[str, Any]:
    """The fields of the form. left_out: what of the message they cannot say."""
    if one is None:
        return {"left_out": []}
    text = one.body if isinstance(one.body, str) else None
    body = one.body_base64 if isinstance(one.body_base64, str) else None
    if text is not None and not is_kept_by_fields(text):
        body, text = base64.b64encode(text.encode()).decode(), None
    missing = {"body": text is None and body is None, "key": one.key_base64}
    return {
        "body": text or "",
        "body_base64": body,
        "headers": json.dumps(one.headers, ensure_ascii=False) if one.headers else "",
        "properties": json.dumps(one.properties, ensure_ascii=False) if one.properties else "",
        "key": one.key or "",
        "ttl": "" if one.ttl_ms is None else f"{one.ttl_ms}ms",
        "priority": one.priority or "",
        "at_most_once": one.at_most_once,
        "retry": msgspec.json.encode(one.retry).decode() if one.retry else "",
        "left_out": [name for name, is_missing in missing.items() if is_missing],
    }


class JobsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """cursor, limit: of the audit."""

    cursor: str = ""
    limit: int = 50


@pages("/jobs", "Jobs", query=JobsQuery)
async def jobs(call: Call) -> dict[str, Any]:
    """All jobs that are kept, and a page of the audit."""
    query: JobsQuery = call.query
    stats = await snapshots_of(call.site).stats()
    audit = following = None
    if call.may is Scope.ADMIN:
        asked = AuditQuery(limit=query.limit, cursor=query.cursor)
        audit = await records(call._replace(query=asked))
        if audit.next_cursor is not None:
            following = link("/jobs", cursor=audit.next_cursor, limit=query.limit)
    return {
        "api": "/v1/jobs",
        "jobs": await all_jobs(call),
        "audit": audit,
        "following": following,
        "query": query,
        "now_ms": stats.now_ms,
    }
