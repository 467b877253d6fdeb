"""Jobs: the bulk verbs of the last day; for administrators also the audit."""

from __future__ import annotations

from typing import Any

import msgspec

from delaybridge.client.verbs import Scope
from delaybridge.serve.console.page import ConsolePage
from delaybridge.serve.console.rendering import link
from delaybridge.serve.console.snapshot import snapshots_of
from delaybridge.serve.shared.audit import AuditQuery, records
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.jobs import all_jobs


class JobsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """cursor, limit: of the audit."""

    cursor: str = ""
    limit: int = 50


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


PAGES = (ConsolePage(path="/jobs", name="jobs", title="Jobs", data=jobs, query=JobsQuery),)
