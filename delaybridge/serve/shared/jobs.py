"""Jobs: bulk verbs that go on after their request was answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

import msgspec

from delaybridge.client.notes import Notes
from delaybridge.errors import DelayBridgeError
from delaybridge.message import Answer, new_id
from delaybridge.serve.shared.audit import note
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.site import Site
from delaybridge.serve.stored import jobs
from delaybridge.serve.stored.jobs import RUNNING, Job
from delaybridge.store.calls import Calls
from delaybridge.store.messages.selection import Selected
from delaybridge.store.protocol.verbs import Steps

BATCH_MESSAGES = 250  # a pipeline that keeps Redis busy for about 4 ms
TELL_S = 1.0
_ENDS = 3  # how often its end is told, if Redis does not answer
_log = logging.getLogger("delaybridge")
Named = str | Selected
Verb = Callable[[Sequence[Named]], Awaitable[list[Answer]]]
"""A method of the client for many messages, with its other arguments."""
Progress = AsyncGenerator[tuple[int, Mapping[str, int]], None]
"""What a job has done since the item before: messages found, and how many got each answer."""


async def begin(call: Call, verb: str, progress: Progress, notes: Notes | None = None) -> Job:
    """Begin a job, whose work is done while its progress is iterated; the job as it is now.

    notes: what the work tells meanwhile.
    """
    now_ms = _now_ms()
    job = Job(new_id(), verb, RUNNING, now_ms, now_ms, tenant=call.tenant)
    site = call.site
    await site.client.run(lambda calls: _begin(calls, job))
    task = asyncio.create_task(_work(call, job, progress, notes), name=f"job {job.id}")
    site.tasks[job.id] = task
    task.add_done_callback(lambda _: _ended(site, job.id))
    return job


def _ended(site: Site, id: str) -> None:
    del site.tasks[id]
    site.snapshots.renew()


async def all_jobs(call: Call) -> list[Job]:
    """All that are kept and that it may see, the latest first."""
    found = await call.site.client.run(_read)
    return [job for job in found if not call.tenant or job.tenant == call.tenant]


async def stop(site: Site, id: str) -> bool:
    """Stop a job of this process, after the messages under way; False if it is not here."""
    task = site.tasks.get(id)
    if task is None:
        return False
    task.cancel()
    await asyncio.wait([task])
    return True


async def applied(
    pages: AsyncIterator[Sequence[Named]], do: Verb, notes: Notes | None = None
) -> Progress:
    """Apply `do` to all pages. notes: gets those of the answers."""
    async for page in pages:
        yield len(page), {}
        for at in range(0, len(page), BATCH_MESSAGES):
            some = page[at : at + BATCH_MESSAGES]
            batch = asyncio.ensure_future(do(some))
            try:
                answers = await asyncio.shield(batch)
            except asyncio.CancelledError:
                # Stopped: what is under way is done all the same, so it is counted.
                yield 0, _counted(some, await batch, notes)
                raise
            yield 0, _counted(some, answers, notes)


def _counted(
    some: Sequence[Named], answers: Sequence[Answer], notes: Notes | None
) -> Mapping[str, int]:
    if notes is not None:
        notes.add_answers((getattr(one, "id", str(one)) for one in some), answers)
    return Counter(answer.value for answer in answers)


async def _work(call: Call, job: Job, progress: Progress, notes: Notes | None) -> None:
    site = call.site
    answers, ends = Counter[str](), asyncio.Event()
    telling = asyncio.create_task(_keep_telling(site, job, ends))
    try:
        async with aclosing(progress):
            async for found, answered in progress:
                job.matched += found
                answers.update(answered)
                job.answers = dict(answers)
                job.notes = [] if notes is None else notes.lines()
        job.state = "done"
    except asyncio.CancelledError:
        job.state = "stopped"
    except DelayBridgeError as exc:
        job.state, job.error = "failed", str(exc)[:500]
    except Exception as exc:
        _log.error("job %s failed", job.id, exc_info=exc)
        job.state, job.error = "failed", f"internal: {type(exc).__name__}; see the log"
    ends.set()
    await telling  # not cancelled: what it has sent must not arrive after the end
    for _ in range(_ENDS):  # untold, it would be taken for one that was interrupted
        if await _tell(site, job):
            break
    done = msgspec.json.encode(job).decode()
    await note(call, {"what": job.verb, "status": job.state, "answer": done})


async def _keep_telling(site: Site, job: Job, ends: asyncio.Event) -> None:
    """Write every second how far it is, however long a batch or a search takes."""
    while not ends.is_set():
        try:
            async with asyncio.timeout(TELL_S):
                await ends.wait()
        except TimeoutError:
            await _tell(site, job)


async def _tell(site: Site, job: Job) -> bool:
    """Write how far it is; whether Redis has it. If it does not answer, the next time does."""
    job.updated_ms = _now_ms()
    try:
        await site.patient.run(lambda calls: _write(calls, job))
    except DelayBridgeError as exc:
        _log.warning("job %s: its progress is not told: %s", job.id, exc)
        return False
    return True


def _begin(calls: Calls, job: Job) -> Steps[None]:
    """Write a new job, and forget those that are too old."""
    yield from calls.open()
    stored, _ = yield [jobs.read(calls.namespace), jobs.write(calls.namespace, job)]
    if old := jobs.outdated(jobs.understood(stored, _now_ms()), _now_ms()):
        yield [jobs.forget(calls.namespace, old)]


def _write(calls: Calls, job: Job) -> Steps[None]:
    yield [jobs.write(calls.namespace, job)]


def _read(calls: Calls) -> Steps[list[Job]]:
    (stored,) = yield [jobs.read(calls.namespace)]
    return jobs.understood(stored, _now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
