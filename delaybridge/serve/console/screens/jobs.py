"""Jobs: the bulk verbs of the last day; for administrators also the audit."""

from __future__ import annotations

from typing import Any

import msgspec

from delaybridge.serve.api.messages.jobs import all_jobs
from delaybridge.serve.api.operations.audit import AuditQuery, records
from delaybridge.serve.console.page import ConsolePage
from delaybridge.serve.console.rendering import link
from delaybridge.serve.http.endpoint import Call, Scope


class JobsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """cursor, limit: of the audit."""

    cursor: str = ""
    limit: int = 50


async def jobs(call: Call) -> dict[str, Any]:
    """All jobs that are kept, and a page of the audit."""
    query: JobsQuery = call.query
    look = await call.site.looks.look()
    assert look.stats is not None
    audit = following = None
    if call.may is Scope.ADMIN:
        asked = AuditQuery(limit=query.limit, cursor=query.cursor)
        audit = (await records(call._replace(query=asked))).content
        if audit.next_cursor is not None:
            following = link("/jobs", cursor=audit.next_cursor, limit=query.limit)
    return {
        "api": "/v1/jobs",
        "jobs": await all_jobs(call),
        "audit": audit,
        "following": following,
        "query": query,
        "now_ms": look.stats.now_ms,
    }


PAGES = (ConsolePage(path="/jobs", name="jobs", title="Jobs", data=jobs, query=JobsQuery),)
