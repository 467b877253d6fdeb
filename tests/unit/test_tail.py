"""What a process tells a listener, and what `delaybridge tail` makes of it; nothing is sent."""

from __future__ import annotations

import itertools
import json
import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from delaybridge import events
from delaybridge.errors import StoreUnavailable
from delaybridge.operate import cli
from delaybridge.operate.cli.watching.tail import Printer
from delaybridge.operate.notices.event_channel import Beat, Told, publish, read
from delaybridge.operate.parts.broadcast import Broadcast
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.output import Output
from delaybridge.worker.eventlog import Listeners
from delaybridge.worker.service import Identity

HOSTILE = "amqp://u:S3CR3T@h \x1b[31m"


def published(n: int, to: str = "kafka:t") -> events.Published:
    return events.Published(destination=to, messages=n, late_ms=n)


@pytest.fixture
def listeners() -> Listeners:
    return Listeners()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock of `tail`, in its first element."""
    clock = [1000.0]
    monkeypatch.setattr("delaybridge.operate.cli.watching.tail.time.monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def broadcast(listeners: Listeners) -> Broadcast:
    found = Broadcast("ns", Identity("w", "i", b""))
    found.join(listeners)
    return found


def beat(broadcast: Broadcast, heard: int | Exception) -> Beat:
    """What it tells at this beat, and how many hear it."""
    (command,) = broadcast.commands()
    assert command.args[0] == "{ns}:events"
    told = read(bytes(command.args[1]).decode())  # type: ignore[arg-type]
    assert told is not None
    broadcast.take_replies([heard])
    return told


async def test_events_are_told_only_while_somebody_listens(
    broadcast: Broadcast, listeners: Listeners
) -> None:
    listeners(published(1))
    assert beat(broadcast, 0).lines == []
    listeners(published(2))
    assert beat(broadcast, 1).lines == [], "nobody had heard the beat before"
    listeners(published(3))
    listeners(published(4))
    (line,) = beat(broadcast, 1).lines
    assert (line.event, line.fields["n"], line.fields["lateness_ms"]) == ("published", 7, 4)
    listeners(published(5))
    last = beat(broadcast, 0)
    assert (last.number, len(last.lines)) == (4, 1)
    listeners(published(6))
    assert beat(broadcast, 1).lines == []


async def test_a_beat_that_failed_is_missing_and_the_next_one_tells(
    broadcast: Broadcast, listeners: Listeners
) -> None:
    beat(broadcast, 1)
    listeners(published(1))
    assert beat(broadcast, StoreUnavailable("gone")).number == 2
    listeners(published(2))
    told = beat(broadcast, 1)
    assert (told.number, told.lines[0].fields["n"]) == (3, 2)


async def test_a_beat_is_bounded_and_without_secrets(
    broadcast: Broadcast, listeners: Listeners
) -> None:
    beat(broadcast, 1)
    for n in range(1000):
        listeners(events.CircuitOpened(destination=f"kafka:{n}", reason=HOSTILE * 1000))
        listeners(events.Retried(destination=f"kafka:{n}", messages=1, reason=HOSTILE))
        listeners(events.Quarantined(source="s", messages=1, reason="bad: the body"))
    told = beat(broadcast, 1)
    assert len(told.lines) == 200
    assert told.dropped == 1000 + 101 - 200, "every line is either told or counted"
    text = str(publish("ns", told).args)
    assert "S3CR3T" not in text and "body" not in text and "\x1b" not in text
    assert len(text) < 100_000


async def test_a_beat_names_some_messages_of_each_line_and_the_log_names_none(
    broadcast: Broadcast, listeners: Listeners, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    beat(broadcast, 1)
    copies = [SimpleNamespace(id=f"m-{n}") for n in range(1000)]
    for at in range(0, 1000, 30):
        some = copies[at : at + 30]
        event = published(len(some))
        listeners(msgspec.structs.replace(event, copies=some))
    lost = [SimpleNamespace(id="lost")]
    listeners(events.Retried(destination="kafka:t", messages=1, reason="nack", copies=lost))
    many, one = beat(broadcast, 1).lines
    assert (many.fields["n"], one.ids) == (1000, ["lost"])
    assert 20 <= len(many.ids) <= 50
    numbers = [int(id.removeprefix("m-")) for id in many.ids]
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    assert len(steps) == 1 and numbers[-1] > 900, "they are of the whole second"
    for n in range(100):
        event = published(1000, to=f"kafka:{n}")
        listeners(msgspec.structs.replace(event, copies=copies))
    assert [len(line.ids) for line in beat(broadcast, 1).lines] == [1] * 100
    listeners.flush()
    assert "n=1000" in caplog.text and "m-" not in caplog.text


def test_a_line_of_one_message_has_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [told("published", n=1, destination="d"), told("buried", n=3)]
    for line, ids in zip(lines, (["a b"], ["x", "y"]), strict=True):
        line.ids = ids
    printer(as_json=False).hear(text_of(1, *lines))
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith('id="a b" destination=d') and second.endswith("n=3 ids=x,y")
    printer().hear(text_of(1, *lines))
    assert shown(capsys)[0] == ("w", "published", {"n": 1, "destination": "d", "ids": ["a b"]})


def printer(*, destination: str | None = None, only: str = "", as_json: bool = True) -> Printer:
    call = Invocation(Output(as_json, False))
    return Printer(call, destination, frozenset(filter(None, only.split(","))))


def text_of(number: int, *lines: Told, worker: str = "w", instance: str = "i", **rest: Any) -> str:
    return bytes(
        publish("ns", Beat(worker, instance, number, list(lines), **rest)).args[1]
    ).decode()


def told(event: str, **fields: Any) -> Told:
    return Told(1_800_000_000_000, 20, event, fields)


def shown(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, dict[str, Any]]]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [(line["worker"], line["event"], line["fields"]) for line in lines]


def test_what_is_missing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    tail = printer()
    tail.hear(None)
    tail.hear(text_of(7, told("published", n=1)))
    tail.hear(text_of(7, told("published", n=1)))  # sent again
    tail.hear(text_of(10, told("published", n=2), dropped=3))
    tail.hear(text_of(1, told("published", n=3), instance="restarted"))
    missing = [fields for _, event, fields in shown(capsys) if event != "published"]
    assert missing[1:] == [{"of": "w", "seconds": 2}, {"of": "w", "lines": 3}]
    tail.hear(StoreUnavailable("redis: gone"))
    tail.hear(StoreUnavailable("redis: still gone"))
    tail.hear(None)
    lost, back = shown(capsys)
    assert lost[1] == "redis_lost" and back[1] == "redis_back"
    assert "events may be missing" in lost[2]["hint"] and "missing" in back[2]["hint"]


def test_a_process_that_falls_silent_is_named_and_a_fleet_that_is(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    tail = printer()
    tail.hear(None)
    for _ in range(20):
        now[0] += 1
        tail.tick(now[0])
    tail.hear(text_of(1))
    for _ in range(20):
        now[0] += 1
        tail.tick(now[0])
    assert [event for _, event, _ in shown(capsys)] == [
        *("listening", "no_worker_heard", "worker_silent", "no_worker_heard")
    ]


def test_nobody_is_called_silent_because_tail_itself_was_held_up(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    tail = printer()
    tail.hear(None)
    tail.hear(text_of(1, worker="v"))
    tail.hear(text_of(1))
    now[0] += 20  # its reader stopped, or tail itself
    tail.hear(text_of(2))
    tail.tick(now[0])
    assert [event for _, event, _ in shown(capsys)] == ["listening"]
    for _ in range(6):  # both end
        now[0] += 1
        tail.tick(now[0])
    said = [(event, fields.get("silent")) for _, event, fields in shown(capsys)]
    assert said == [("worker_silent", "v"), ("worker_silent", "w"), ("no_worker_heard", None)]


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ("rabbitmq", "012"),
        ("rabbitmq:orders", "01"),
        ("rabbitmq:orders/close", "01"),
        ("rabbitmq:orders/open", "0"),
        ("kafka", ""),
        ("rabbitmq:ord", ""),
    ],
)
def test_lines_are_chosen_by_destination(
    wanted: str, fits: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ("rabbitmq:orders", "rabbitmq:orders/close", "rabbitmq:mail")
    tail = printer(destination=wanted)
    lines = [told("published", destination=place, n=n) for n, place in enumerate(places)]
    tail.hear(text_of(1, *lines, told("lease_lost", buckets=[1])))
    assert "".join(str(fields["n"]) for _, _, fields in shown(capsys)) == fits


def test_lines_are_chosen_by_event(capsys: pytest.CaptureFixture[str]) -> None:
    tail = printer(only="retried,buried")
    tail.hear(text_of(1, told("published"), told("retried"), told("buried"), dropped=1))
    assert [event for _, event, _ in shown(capsys)] == ["retried", "buried", "events_missing"]
    assert cli.main(["tail", "--event", "published,retired"]) == 2
    assert capsys.readouterr().err.startswith("error: --event: 'retired'")


@pytest.mark.parametrize(
    "text",
    ["", "{}", "x", "[]", '{"worker":1}', "�", text_of(1, told("x", a=[1, 2]))[:-3]]
    + ['{"worker":"w","instance":"i","number":1,"lines":[{"at_ms":1,"level":1,"event":"e",'
       '"fields":{"buckets":["x"]}}]}'],
)  # fmt: skip
def test_anything_else_on_the_channel_is_ignored(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printer().hear(text)
    assert capsys.readouterr().out == ""


def test_hostile_text_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    tail = printer(as_json=False)
    tail.hear(text_of(1, told("\x1b[2J", destination="\x1b[31m", n=2**62), worker="\x1b]0;x\x07"))
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out
    assert out.startswith("08:00:00.000  ")
