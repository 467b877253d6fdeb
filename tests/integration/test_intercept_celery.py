"""Celery's own worker on RabbitMQ and on Redis: tasks with a countdown wait in delaybridge."""

from __future__ import annotations

import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group, signals
from kombu.exceptions import OperationalError

from delaybridge import Client, StoreUnavailable
from delaybridge.intercept.celery import install
from tests.rigs.celery_team import APP, Team, Workers
from tests.rigs.waiting import DEADLINE_S, until

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")


@pytest.fixture(scope="module", params=["rabbitmq", "kombu"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of broker that Celery is on; `kombu`: Redis."""
    return str(request.param)


@pytest.fixture(scope="module")
def make_workers(kind: str, redis_url: str, rabbitmq_url: str) -> Callable[[Path], Workers]:
    broker = rabbitmq_url if kind == "rabbitmq" else redis_url
    return lambda folder: Workers(folder, redis_url, broker, f"t-{uuid.uuid4().hex[:16]}", kind)


@pytest.fixture(scope="module")
def workers(
    make_workers: Callable[[Path], Workers], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    """Those of all tests that change nothing about them."""
    with closing(make_workers(tmp_path_factory.mktemp("workers"))) as workers:
        yield workers


@pytest.fixture
def team(workers: Workers) -> Iterator[Team]:
    """A team on a queue that it shares with earlier tests, and with their workers."""
    with closing(Team(workers)) as team:
        team.start()
        yield team


@pytest.fixture
def own_team(make_workers: Callable[[Path], Workers], tmp_path: Path) -> Iterator[Team]:
    """A team whose workers, if it starts any, are its own."""
    with closing(make_workers(tmp_path)) as workers, closing(Team(workers)) as team:
        yield team


def in_(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@pytest.mark.slow_with("rabbitmq")
def test_500_countdowns_and_etas_run_once_and_never_early(team: Team) -> None:
    due: dict[str, float] = {}
    for number in range(450):
        seconds = 3 + number % 20 / 20
        due[f"c{number}"] = time.time() + seconds
        team.tasks.ran.apply_async([f"c{number}"], countdown=seconds)
    together = in_(4)
    for number in range(50):
        due[f"e{number}"] = together.timestamp()
        team.tasks.ran.apply_async([f"e{number}"], eta=together)
    runs = team.until_ran(*due)
    assert {label: len(times) for label, times in runs.items()} == dict.fromkeys(due, 1)
    assert not {id: runs[id][0] - at for id, at in due.items() if runs[id][0] < at - 0.001}


@pytest.mark.slow_with("rabbitmq")
def test_no_worker_holds_tasks_that_are_not_due(team: Team) -> None:
    worker = f"{team.queue}@localhost"
    inspect = team.app.control.inspect([worker], timeout=DEADLINE_S, limit=1)
    for number in range(200):
        team.tasks.ran.apply_async([number], countdown=3600)
    team.tasks.ran.delay("now")
    team.until_ran("now")  # after everything that would have been in the queue
    assert inspect.scheduled() == {worker: []}
    assert team.client.stats().delayed == 200
    with closing(team.other()) as stock:
        held = stock.send_task(team.tasks.ran.name, ["held"], countdown=3600, queue=team.queue)
        until(lambda: held.id in str(inspect.scheduled()), "what Celery would do")


def test_a_task_that_is_due_already_is_sent_directly(team: Team) -> None:
    team.tasks.ran.apply_async(["zero"], countdown=0)
    team.tasks.ran.apply_async(["negative"], countdown=-5)
    team.tasks.ran.apply_async(["past"], eta=in_(-3600))
    team.tasks.ran.delay("now")
    assert team.client.stats().delayed == 0
    team.until_ran("zero", "negative", "past", "now")


def test_a_revoke_before_the_due_time_cancels_and_the_result_is_revoked(team: Team) -> None:
    hours = team.tasks.ran.apply_async(["hours"], countdown=3 * 3600)
    assert hours.state == "PENDING"
    assert team.client.get(hours.id) is not None
    hours.revoke()
    assert team.client.get(hours.id) is None
    due_s, labels = 0.0, list[str]()
    while due_s <= time.time():  # this process stood still, and revoked the one before too late
        labels.append(f"soon{len(labels)}")
        due_s = time.time() + 1.5
        soon = team.tasks.ran.apply_async(labels[-1:], countdown=1.5)
        team.app.control.revoke([soon.id])
    assert hours.state == soon.state == "REVOKED"
    after = team.tasks.ran.apply_async(["after"], countdown=2)
    assert after.get(timeout=DEADLINE_S) == "after"
    assert after.state == "SUCCESS"
    assert team.runs().keys() - {*labels[:-1]} == {"after"}


def test_chains_groups_and_chords_with_countdowns_run(team: Team) -> None:
    began_s = time.time()
    add, total = team.tasks.add, team.tasks.total
    chained = chain(add.s(1, 2), add.s(3).set(countdown=1), add.s(4)).apply_async()
    grouped = group(add.s(n, n) for n in range(5)).apply_async(countdown=1)
    joined = chord((add.s(n, 1).set(countdown=1) for n in range(4)), total.s()).apply_async()
    assert chained.get(timeout=DEADLINE_S) == 10
    assert grouped.get(timeout=DEADLINE_S) == [0, 2, 4, 6, 8]
    assert joined.get(timeout=DEADLINE_S) == 10
    assert time.time() - began_s >= 1


def test_a_chord_learns_that_one_of_its_tasks_was_revoked(team: Team) -> None:
    add, total = team.tasks.add, team.tasks.total
    late = add.s(1, 1).set(countdown=3600, task_id=f"{team.queue}-late", compression="zlib")
    joined = chord([add.s(1, 2), late], total.s()).apply_async()
    team.app.control.revoke(f"{team.queue}-late")
    # Of its own, not that of the group it waits for, which `get` would raise as well.
    until(lambda: joined.state == "FAILURE", "the chord has failed")
    with pytest.raises(Exception, match="evoked"):
        joined.get(timeout=DEADLINE_S)


@pytest.mark.parametrize("installed", [True, False], ids=["installed", "without"])
@pytest.mark.slow_with("*installed", "kombu-*")
def test_a_retry_with_a_countdown_comes_back(
    kind: str, request: pytest.FixtureRequest, installed: bool
) -> None:
    team = request.getfixturevalue("own_team" if installed else "team")
    if installed:
        team.start(pool="prefork", CELERY_TEST_INSTALL="1", **team.settings)
    results = [team.tasks.at_the_third_try.delay(f"r{n}", 0.7) for n in range(10)]
    assert [r.get(timeout=DEADLINE_S) for r in results] == [2] * 10
    for number in range(10):
        times = [team.runs()[f"r{number}-{retry}"] for retry in range(3)]
        assert [len(each) for each in times] == [1, 1, 1]
        assert times[1][0] - times[0][0] >= 0.69
        assert times[2][0] - times[1][0] >= 0.69
    at = team.tasks.again_at.delay("at", 0.7)
    assert at.get(timeout=DEADLINE_S) == 1


def test_concurrent_publishers_lose_nothing(team: Team) -> None:
    labels = [f"t{number}" for number in range(200)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda x: team.tasks.ran.apply_async([x], countdown=1), labels))
    runs = team.until_ran(*labels)
    assert Counter(len(times) for times in runs.values()) == {1: 200}


def test_the_same_task_id_twice_runs_twice_as_with_celery(team: Team) -> None:
    for _ in range(2):
        team.tasks.ran.apply_async(["twice"], countdown=1, task_id=f"{team.queue}-same")
    until(lambda: len(team.runs().get("twice", ())) == 2, "two runs")


def test_an_unreachable_redis_raises_the_same_error_as_an_unreachable_broker(
    own_team: Team, kind: str
) -> None:
    with own_team.unreachable() as client, closing(own_team.other(client)) as app:
        install(app, client=client)  # again
        with pytest.raises(OperationalError):
            app.send_task("x", countdown=10, queue=own_team.queue)


def test_the_app_may_be_configured_after_install(redis_url: str) -> None:
    app: Any = Celery("later", broker="memory://")
    client = Client(redis_url)
    install(app, client=client)
    assert not app.configured
    app.conf.update(task_default_queue="mine", task_serializer="yaml", control_exchange="ours")
    assert app.control.mailbox.namespace == "ours"
    app.send_task("now")
    with app.connection() as connection:
        assert connection.default_channel.basic_get("mine").content_type == "application/x-yaml"
    client.close()
    app.close()


@pytest.mark.parametrize("options", [{}, {"serializer": "yaml", "compression": "zlib"}])
@pytest.mark.slow_with("kombu-*")
def test_a_delayed_task_arrives_as_celery_would_have_sent_it(
    own_team: Team, kind: str, options: dict[str, Any]
) -> None:
    own_team.bridge.start_workers(1)
    stock = own_team.other()
    stock.conf.task_default_queue = own_team.queue
    link = dict(stock.signature("linked", args=[1]))  # as YAML, too, knows it
    eta = in_(3600)
    arguments = {
        "task_id": f"{own_team.queue}-same", "eta": eta, "priority": 3, "headers": {"mine": 1},
        "link": link, "link_error": link, "shadow": "other", "reply_to": "r", **options,
    }  # fmt: skip
    stock.send_task("t", ["x", {"y": 1}], {"z": None}, **arguments)
    direct = own_team.take()
    receipt_id = own_team.app.send_task("t", ["x", {"y": 1}], {"z": None}, **arguments).id
    stored = own_team.client.get(receipt_id, key=receipt_id)
    assert stored is not None and abs(stored.due_ms - eta.timestamp() * 1000) <= 1
    assert own_team.client.reschedule(receipt_id, key=receipt_id, delay=0) == "rescheduled"
    delayed = own_team.take()
    ours = {"delaybridge-id", "delaybridge-due-ms", "delaybridge-attempt"}
    assert delayed.headers.keys() - direct.headers.keys() == ours
    for message in (direct, delayed):
        for name in ours:
            message.headers.pop(name, None)
        for varies in ("delivery_tag", "origin"):
            message.properties.pop(varies, None)
            message.headers.pop(varies, None)
        message.delivery_info.pop("delivery_tag", None)  # numbered by the channel
    for what in ("body", "headers", "properties", "delivery_info", "content_type"):
        assert getattr(delayed, what) == getattr(direct, what), what
    stock.close()


def test_signals_fire_when_the_task_is_sent(own_team: Team) -> None:
    fired: list[str] = []

    def before(headers: dict[str, Any], routing_key: str, **_: Any) -> None:
        fired.append(f"before {headers['id']} {bool(headers['eta'])}")
        headers["stamped"] = "by a signal"

    def after(headers: dict[str, Any], **_: Any) -> None:
        fired.append(f"after {headers['id']}")

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        id = own_team.tasks.ran.apply_async(["x"], countdown=3600).id
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    assert fired == [f"before {id} True", f"after {id}"]
    stored = own_team.client.get(id)
    assert stored is not None and dict(stored.headers)["stamped"] == "by a signal"


def test_links_and_tasks_sent_by_name_are_delayed(team: Team) -> None:
    name = team.tasks.ran.name
    linked = team.tasks.ran.si("linked").set(countdown=0.5)
    team.app.send_task(name, ["named"], countdown=0.5, link=linked)
    failed = team.tasks.fails.apply_async(countdown=0.5, link_error=team.tasks.ran.si("error"))
    late = team.tasks.ran.apply_async(["expired"], countdown=1, expires=0.5)
    team.until_ran("named", "linked", "error")
    assert failed.state == "FAILURE"
    until(lambda: late.state == "REVOKED", "the expired one thrown away")
    assert "expired" not in team.runs()


def test_a_revoke_finds_every_copy_and_every_retry(own_team: Team) -> None:
    ran = own_team.tasks.ran
    again, hundredth, kept = (f"{own_team.queue}-{what}" for what in ("again", "retry", "kept"))
    for number in range(3):
        ran.apply_async([number], countdown=3600, task_id=again)
    ran.apply_async(["r"], countdown=3600, task_id=hundredth, retries=100)
    ran.apply_async(["k"], countdown=3600, task_id=kept)
    assert len(own_team.pending()) == 5
    # As `celery control revoke ID ID` has it.
    own_team.app.control.broadcast("revoke", arguments={"task_id": [again, hundredth, "unknown"]})
    assert own_team.pending() == [kept]
    own_team.app.control.revoke("x" * 2000)  # no id that a message could have
    ran.AsyncResult(kept).revoke(terminate=True)
    assert own_team.pending() == []
    assert {ran.AsyncResult(id).state for id in (again, hundredth, kept)} == {"REVOKED"}


def test_a_revoke_reaches_the_workers_even_if_redis_is_unreachable(team: Team) -> None:
    inspect = team.app.control.inspect([f"{team.queue}@localhost"], limit=1)
    until(inspect.ping, "the worker hears: it may be ready before it does")
    with team.unreachable() as client, closing(team.other(client)) as app:
        with pytest.raises(OperationalError):
            app.control.revoke(f"{team.queue}-id")
    until(lambda: f"{team.queue}-id" in str(inspect.revoked()), "the worker knows")


def test_a_lost_broker_connection_is_reopened_once(own_team: Team) -> None:
    with own_team.app.amqp.producer_pool.acquire(block=True) as producer:
        lost = producer.channel
        if hasattr(lost, "client") and hasattr(lost.client, "connection_pool"):
            lost.client.connection_pool.disconnect()
        else:
            producer.connection.connection.sock.shutdown(socket.SHUT_RDWR)
        own_team.tasks.ran.apply_async(["1"], countdown=3600, producer=producer)
        made = producer.channel
        for number in range(3):
            own_team.tasks.ran.apply_async([number], countdown=3600, producer=producer)
        assert producer.channel is made
    assert len(own_team.pending()) == 4


def test_a_call_whose_answer_is_lost_is_repeated_by_the_retry_policy(own_team: Team) -> None:
    class Deaf(Client):
        calls = 0

        def run(self, call: Any) -> Any:
            self.calls += 1
            answer = super().run(call)
            if self.calls == 2:  # a real loss would need a time-out that no other call exceeds
                raise StoreUnavailable("stored, and its answer is lost")
            return answer

    bridge, queue = own_team.bridge, own_team.queue
    with Deaf(bridge.redis_url, namespace=queue, brokers=bridge.brokers, buckets=1) as client:
        app = own_team.other(client)
        first = app.send_task("x", countdown=3600, queue=queue)
        second = app.send_task("x", countdown=3600, queue=queue)
        assert client.calls == 3
        client.calls = 1
        with pytest.raises(OperationalError):
            app.send_task("x", countdown=3600, queue=queue, retry=False, task_id="3rd")
        assert client.calls == 2
        app.close()
    assert own_team.pending() == sorted([first.id, second.id, "3rd"])


@pytest.mark.slow_with("rabbitmq")
def test_processes_forked_after_the_first_send_delay_their_tasks(team: Team) -> None:
    script = f"""
import os
from {APP} import ran
ran.apply_async(["parent"], countdown=1)
for process in range(3):
    if os.fork() == 0:
        for number in range(50):
            ran.apply_async([f"p{{process}}-{{number}}"], countdown=1)
        os._exit(0)
assert [os.wait()[1] for _ in range(3)] == [0, 0, 0]
"""
    ended = team.run(script, CELERY_TEST_INSTALL="1")
    assert ended.returncode == 0, ended.stderr
    labels = ["parent", *(f"p{process}-{number}" for process in range(3) for number in range(50))]
    runs = team.until_ran(*labels)
    assert {label: len(times) for label, times in runs.items()} == dict.fromkeys(labels, 1)


@pytest.fixture
def quorum(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The team's queue is a quorum queue on an exchange of this type."""
    monkeypatch.setenv("CELERY_TEST_QUORUM", request.param)


@pytest.mark.parametrize("quorum", ["topic", "direct"], indirect=True)
@pytest.mark.parametrize("kind", ["rabbitmq"], indirect=True)
@pytest.mark.slow_with("rabbitmq-direct")
def test_quorum_queues_accept_any_delay_without_celery_s_native_delays(
    quorum: None, own_team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    own_team.start()
    sent_s = time.time()
    own_team.tasks.ran.apply_async(["later"], countdown=1.5)
    own_team.tasks.ran.apply_async(["soon"], countdown=0.4)
    own_team.tasks.ran.apply_async(["at"], eta=datetime.now(UTC) + timedelta(seconds=0.6))
    held = own_team.client.get(own_team.tasks.ran.apply_async(["held"], countdown=3600).id)
    assert held is not None
    destination = held.destination.partition("/")[0]
    assert destination in (f"rabbitmq:{own_team.queue}", "rabbitmq:"), "its own exchange"
    runs = own_team.until_ran("later", "soon", "at")
    assert [len(times) for times in runs.values()] == [1, 1, 1]
    assert runs["later"][0] >= sent_s + 1.5
    assert runs["soon"][0] >= sent_s + 0.4
    assert not caplog.records, "Celery does not warn of its own delays"
