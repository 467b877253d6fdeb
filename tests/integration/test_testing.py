"""`delaybridge.testing` as its users have it: the page, the fixture, drop-ins, time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from delaybridge import ConfigError, Message, MessageError
from delaybridge.testing import Bridge
from tests.rigs.lean_python import ROOT
from tests.rigs.pages import blocks
from tests.rigs.waiting import DEADLINE_S

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    with Bridge(now="2030-01-01T00:00:00Z") as made:
        yield made


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plugin = ["-p", "delaybridge.pytest_plugin"]
    alone = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*PYTEST, *plugin, *arguments],
        cwd=folder,
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
    )


def test_the_programs_of_the_page_pass_as_tests_whatever_redis_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = blocks("docs/testing.md")
    monkeypatch.setenv("DELAYBRIDGE_REDIS_URL", "redis://other.invalid/0")
    (tmp_path / "delaybridge.toml").write_text(
        'redis.url = "redis://user@other.invalid/0"\nredis.password_file = "missing"\n'
    )
    for number, program in enumerate(programs):
        (tmp_path / f"test_block_{number}.py").write_text(program)
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(programs) >= 6


def test_the_plugin_imports_nothing_until_a_bridge_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import sys\n"
        "def test_none(): assert not {'redis', 'fakeredis', 'msgspec'} & sys.modules.keys()\n"
        "def test_lacking(monkeypatch, request):\n"
        "    monkeypatch.setitem(sys.modules, 'fakeredis', None)\n"
        "    request.getfixturevalue('bridge')\n"
    )
    ran = run_pytest(tmp_path)
    assert "1 passed, 1 error" in ran.stdout or "1 failed, 1 passed" in ran.stdout, ran.stdout
    assert 'pip install "delaybridge[testing]"' in ran.stdout


def ids(bridge: Bridge, place: str | None = None) -> list[str]:
    return [each.id for each in bridge.delivered(place)]


def test_each_call_has_a_millisecond_so_equal_delays_keep_the_order_of_the_calls(
    bridge: Bridge,
) -> None:
    client = bridge.client()
    began = bridge.now
    for id in "zyx":
        client.schedule("kafka:orders", b"", delay="15m", id=id)
    client.schedule("kafka:orders", b"", delay=0, id="now")
    assert ids(bridge) == ["now"]
    bridge.advance("15m")
    assert ids(bridge) == ["now", "z", "y", "x"]
    due = [each.due - began for each in bridge.delivered()[1:]]
    assert [each.total_seconds() for each in due] == [900.0, 900.001, 900.002]
    assert client.get("x") is None  # settled, though the clock has not moved on
    client.schedule("kafka:orders", b"", delay="1s", id="after")
    bridge.advance("1s")
    assert ids(bridge)[-1] == "after"
    bridge.advance_to("2029-01-01T00:00:00Z")  # past: nothing happens
    assert (bridge.now - began).total_seconds() == 901.005


def test_recurring_messages_and_a_year_pass_in_their_order(bridge: Bridge) -> None:
    client = bridge.client()
    client.recurring.add("daily", "rabbitmq:reports/daily", b"x", cron="0 9 * * *", tz="UTC")
    client.schedule("kafka:orders", b"", delay="12h", id="between")
    bridge.advance("2d")
    days = [f"daily@2030-01-0{day}T09:00:00Z" for day in (1, 2)]
    assert ids(bridge) == [days[0], "between", days[1]]
    client.recurring.pause("daily")
    bridge.advance("365d")
    assert len(ids(bridge)) == 3


def test_places_are_written_as_everywhere(bridge: Bridge) -> None:
    client = bridge.client()
    for to in ("rabbitmq:orders/a", "rabbitmq:orders/b", "rabbitmq:/orders", "kafka:orders"):
        client.schedule(to, b"", delay=0, id=to)
    assert ids(bridge, "rabbitmq:orders") == ["rabbitmq:orders/a", "rabbitmq:orders/b"]
    assert ids(bridge, "rabbitmq:orders/b") == ["rabbitmq:orders/b"]
    assert ids(bridge, "rabbitmq:/orders") == ["rabbitmq:/orders"]
    assert len(ids(bridge, "rabbitmq")) == 3
    assert ids(bridge, "kafka:other") == []
    assert ids(bridge, "rabbitmq:orders/*") == ids(bridge, "rabbitmq:orders")
    for wrong in ("", "rabbitmq:", "rabitmq:orders"):
        with pytest.raises(MessageError):
            bridge.delivered(wrong)
    with pytest.raises(MessageError, match="did you mean 'rabbitmq'"):
        bridge.down("rabitmq")
    with pytest.raises(MessageError, match="as a whole"):
        bridge.down("rabbitmq:orders")


async def test_callbacks_may_be_coroutine_functions(bridge: Bridge) -> None:
    async with bridge.async_client() as client:

        async def again(message: Any) -> None:
            if len(message.body) < 3:
                await client.schedule("kafka:loop", message.body + b"x", delay=1)

        bridge.on("kafka:loop", again)
        await client.schedule("kafka:loop", b"x", delay=1)
        await bridge.advance_async(10)
        assert [each.body for each in bridge.delivered()] == [b"x", b"xx", b"xxx"]
        await client.schedule("kafka:loop", b"xxx", delay=1)
        with pytest.raises(TypeError, match="await advance_async"):
            bridge.advance(1)


def test_two_bridges_know_nothing_of_each_other_and_leave_no_thread(bridge: Bridge) -> None:
    threads = threading.active_count()
    with Bridge() as other:
        assert other.client().schedule("kafka:a", b"", delay=0, id="a") == "created"
        assert bridge.client().schedule("kafka:a", b"", delay=0, id="a") == "created"
        assert (ids(bridge), ids(other)) == (["a"], ["a"])
    other.close()
    assert threading.active_count() == threads


def test_a_callback_that_raises_ends_the_advance_and_the_next_one_goes_on(bridge: Bridge) -> None:
    client = bridge.client()

    def consume(message: Any) -> None:
        if message.id == "bad":
            raise KeyError("bad")

    seen: list[str] = []
    bridge.on("kafka", lambda message: seen.append(message.id))
    bridge.on("kafka", consume)
    for id in ("bad", "good"):
        client.schedule("kafka:a", b"", delay=1, id=id)
    with pytest.raises(KeyError):
        bridge.advance("1m")
    bridge.advance("1m")
    assert ids(bridge) == seen == ["bad", "good"]


def test_threads_that_let_time_pass_together_are_told_of_each_message_once(bridge: Bridge) -> None:
    client = bridge.client()
    for number in range(20):
        client.schedule("rabbitmq:orders/close", b"%d" % number, delay=number)
    told: list[bytes] = []
    bridge.on("rabbitmq", lambda delivered: told.append(delivered.body or b""))
    threads = [threading.Thread(target=bridge.advance, args=("1m",), daemon=True) for _ in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(told) == sorted(b"%d" % number for number in range(20))
    assert len(bridge.delivered()) == 20


def test_a_bridge_that_is_closed_ends_the_threads_that_let_time_pass() -> None:
    said: list[str] = []
    started = threading.Event()

    def consume(bridge: Bridge) -> None:
        with contextlib.suppress(RuntimeError):
            while True:
                bridge.advance("1s")
                started.set()
        said.append("closed")

    with Bridge() as bridge:
        bridge.client().schedule("rabbitmq:orders/close", b"x", delay="1h")
        thread = threading.Thread(target=consume, args=(bridge,), daemon=True)
        thread.start()
        assert started.wait(DEADLINE_S)
    thread.join(DEADLINE_S)
    assert said == ["closed"]


def test_what_drop_ins_send_at_once_and_later_is_delivered(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    import aio_pika
    import kombu

    from delaybridge.intercept import aio_pika as delaying_aio_pika
    from delaybridge.intercept import confluent_kafka as delaying_kafka
    from delaybridge.intercept import kombu as delaying_kombu

    for name, value in bridge.environment.items():
        monkeypatch.setenv(name, value)

    async def send() -> None:
        connection = await delaying_aio_pika.connect_robust(bridge.amqp_url())
        async with connection:
            channel = await connection.channel()
            exchange: Any = await channel.declare_exchange("aio", durable=True)
            await exchange.publish(aio_pika.Message(b"now"), "k")
            await exchange.publish(aio_pika.Message(b"later"), "k", delay="1h")

    asyncio.run(send())
    with kombu.Connection(bridge.amqp_url()) as connection:
        producer = delaying_kombu.Producer(connection)
        producer.publish({"a": "x" * 300_000}, "tasks", declare=[kombu.Queue("tasks")])
        producer.publish({"a": 1}, "tasks", delay="1h")
    kafka = delaying_kafka.Producer({"bootstrap.servers": "127.0.0.1:1"})
    kafka.produce("orders", b"later", key=b"k", delay="1h")
    kafka.close()
    bridge.advance("1h")
    places = ["rabbitmq:aio/k", "rabbitmq:/tasks"]
    assert [each.destination for each in bridge.delivered("rabbitmq")] == [*places, *places]
    # For how long it waited in the producer's queue is taken off its delay: no order is promised.
    assert [each.destination for each in bridge.delivered("kafka")] == ["kafka:orders"]


def test_the_command_line_reaches_it(bridge: Bridge) -> None:
    words = [sys.executable, "-m", "delaybridge", "schedule", "kafka:a", "x", "--in", "1h"]
    ran = subprocess.run(words, env={**os.environ, **bridge.environment}, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    bridge.advance("1h")
    assert [each.body for each in bridge.delivered()] == [b"x"]


def test_many_calls_at_once_are_answered_though_scripts_are_slower_here(bridge: Bridge) -> None:
    client = bridge.client()
    client.schedule_many([Message("kafka:a", b"", delay=1, id=f"{n}") for n in range(3000)])
    assert client.cancel_many([f"{n}" for n in range(50)]) == ["cancelled"] * 50
    bridge.advance(1)
    assert len(bridge.delivered()) == 2950


def test_wrong_arguments_and_a_closed_bridge_say_so(bridge: Bridge) -> None:
    bridge.close()
    with pytest.raises(RuntimeError, match="this bridge is closed"):
        bridge.advance(1)
    with pytest.raises(ValueError, match="0 or more"):
        bridge.fail("kafka:a", times=-1)
    with pytest.raises(MessageError, match="span: negative_delay"):
        bridge.advance(-1)
    with pytest.raises(MessageError, match="span: bad_time"):
        bridge.advance(None)  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="no broker is named 'orders'") as refused:
        bridge.delivered("orders")
    assert "rabbitmq" in refused.value.detail and "did you mean" not in refused.value.detail


def test_without_the_extra_for_http_it_says_which_to_install(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "delaybridge.serve.server.mounting", None)
    with pytest.raises(ConfigError, match=r"delaybridge\[web\]"):
        bridge.app()


def test_what_redis_forgets_after_a_while_is_forgotten_after_as_much_time(bridge: Bridge) -> None:
    with redis.Redis.from_url(bridge.url) as raw:
        raw.set("key", "x", ex=60)
        bridge.client().schedule("kafka:a", b"", delay="1h")
        bridge.advance("59s")
        assert raw.get("key") == b"x"
        assert raw.time()[0] == int(bridge.now.timestamp())
        bridge.advance("2s")
        assert raw.get("key") is None


def test_debounce_and_throttle(bridge: Bridge) -> None:
    client, to = bridge.client(), "rabbitmq:mail/notify"
    assert client.debounce(to, b"1", key="page", quiet="5m", longest="8m") == "created"
    bridge.advance("4m")
    assert client.debounce(to, b"2", key="page", quiet="5m") == "replaced"
    bridge.advance("239s")
    assert bridge.delivered() == []
    bridge.advance("1s")
    assert [message.body for message in bridge.delivered()] == [b"2"]
    # What is due leaves, and the next call waits for that.
    answers = [client.throttle(to, b"%d" % n, key="user", every="1m") for n in range(3)]
    assert answers == ["created", "kept", "replaced"]
    bridge.advance("1m")
    assert [message.body for message in bridge.delivered()][1:] == [b"0", b"2"]
