"""Two versions of the scripts at once, as in a rolling upgrade: workers and clients of both."""

from __future__ import annotations

from pathlib import Path

from delaybridge.message import Answer, Message
from tests.rigs.fleet import Fleet
from tests.rigs.other_version import put_other_version
from tests.rigs.waiting import until

MESSAGES = 300


def test_workers_of_two_versions_share_the_work_and_take_over_from_each_other(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    put_other_version(folder)
    with Fleet(tmp_path, redis_url, namespace, ttl_ms=2000) as fleet:
        old = fleet.start("old", instead=folder, settled=False)
        fleet.start("new", settled=False)
        fleet.wait_shared("old", "new")
        ids = fleet.schedule(MESSAGES, seconds=3, first_s=0.2)
        answers = {id: fleet.client.cancel(id) for id in ids[MESSAGES // 2 :: 4]}
        cancelled = {id for id, answer in answers.items() if answer == Answer.CANCELLED}
        # Of a worker that stood still for longer than its lease: cancelled, and maybe out before.
        maybe = {id for id, answer in answers.items() if answer == Answer.CANCELLED_MAYBE_DELIVERED}
        half = set(ids[: MESSAGES // 4])
        until(lambda: half <= {r.id for r in fleet.published()}, "a quarter is out")
        until(
            lambda: {worker.name for worker in fleet.client.stats().workers} == {"old", "new"},
            "both are announced",
        )
        old.kill()  # what it held goes to the other, and is understood there
        fleet.start("old-again", instead=folder)
        fleet.wait_published(sorted(set(ids) - cancelled - maybe))
        fleet.wait_settled()
        published = {record.id for record in fleet.published()}
        tried_again = {record.id for record in fleet.published() if record.attempt > 1}
    assert cancelled
    assert published - maybe == set(ids) - cancelled - maybe
    assert not fleet.early()
    assert set(fleet.twice()) <= tried_again


def test_a_worker_that_knows_no_plans_delivers_messages_that_have_one(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    put_other_version(folder)
    with Fleet(tmp_path, redis_url, namespace, ttl_ms=2000) as fleet:
        fleet.start("old", instead=folder)
        fleet.wait_shared("old")
        plan = {"max_attempts": 3, "base_ms": 100, "dead_letter": "file:failed"}
        some = [Message("file:q", b"x", delay=0, retry=plan, id=f"m{n}") for n in range(20)]
        assert {*fleet.client.schedule_many(some)} == {"created"}
        fleet.wait_published([f"m{n}" for n in range(20)])
        fleet.wait_settled()
