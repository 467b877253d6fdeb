"""Jobs of the HTTP API, whose progress is written to Redis; here one that fails to answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from delaybridge.errors import StoreUnavailable
from delaybridge.serve.dialects import mykit
from delaybridge.serve.shared import jobs
from delaybridge.serve.stored import jobs as stored
from delaybridge.settings.durability import check_durability


class Redis:
    """What a client writes; the first few calls get no answer."""

    def __init__(self, *, silent: int = 0) -> None:
        self.silent = silent
        self.states: list[str] = []

    async def run(self, steps: Callable[[Any], Any]) -> None:
        if self.silent:
            self.silent -= 1
            raise StoreUnavailable("redis: no answer")
        (command,) = next(steps(SimpleNamespace(namespace="n")))
        self.states.append(msgspec.json.decode(command.args[-1])["state"])


@pytest.mark.parametrize(("silent", "told"), [(0, ["done"]), (2, ["done"]), (99, [])])
async def test_the_end_of_a_job_is_told_although_redis_is_silent_for_a_moment(
    silent: int, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For ever it is not tried: the process may have to end."""
    noted = []

    async def note(call: Any, record: Any) -> None:
        noted.append(record["status"])

    async def found() -> jobs.Progress:
        yield 1, {"cancelled": 1}

    monkeypatch.setattr(jobs, "note", note)
    site: Any = SimpleNamespace(patient=Redis(silent=silent))
    job = jobs.Job("j", "cancel", "running", 0, 0)
    await jobs._work(SimpleNamespace(site=site), job, found(), None)  # type: ignore[arg-type]
    assert (site.patient.states, noted) == (told, ["done"])
    assert job.answers == {"cancelled": 1}


@pytest.mark.parametrize("verb", [mykit.restore, mykit.clear])
async def test_a_job_of_mykit_reads_its_pages_as_patiently_as_others(
    verb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    async def begin(*_: Any) -> Any:
        return SimpleNamespace(id="j")

    monkeypatch.setattr(jobs, "begin", begin)
    dead = SimpleNamespace(kick_many=None)
    patient = SimpleNamespace(select=read.append, dead=dead, cancel_many=None)
    serve = SimpleNamespace(compat_destination="kafka:t")
    settings = SimpleNamespace(namespace="n", serve=serve, kept=check_durability("memory"))
    site: Any = SimpleNamespace(patient=patient, settings=settings)  # without an impatient client
    query = SimpleNamespace(expire=True, confirm="n")
    call = SimpleNamespace(site=site, patient=patient, query=query, headers={}, tenant="")
    await inspect.unwrap(verb)(call)
    assert [selection.place for selection in read] == ["kafka"]


def test_a_tenant_with_many_jobs_pushes_out_none_of_others() -> None:
    ends = [stored.Job(f"j{n}", "cancel", "done", -n, 0, tenant="acme") for n in range(102)]
    others = [stored.Job("b", "cancel", "done", -200, 0, tenant="beta")]
    others += [stored.Job("o", "cancel", "running", -300, 0)]
    assert stored.outdated([*ends, *others], 0) == ["j100", "j101"]
