"""Commands that list and move messages: filters by header and attempts, and moves by an offset."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delaybridge import Client
from delaybridge.store.redis.store import Store
from tests.rigs.burials import buried
from tests.rigs.command_line import Run

AT, NEXT_DAY = "2035-01-01T00:00:00Z", "2035-01-02T00:00:00Z"
START_MS = 2_051_222_400_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    """A client in the same namespace, with a few messages."""
    with Client(redis_url, namespace=namespace) as client:
        for number, tenant in enumerate(("blue", "red", "blue")):
            headers = {"tenant": tenant, "n": str(number)}
            client.schedule("kafka:t", b"x", id=f"m{number}", at=AT, headers=headers)
        client.schedule("rabbitmq:/q", b"x", id="other", at=NEXT_DAY)
        yield client


def due_ms(client: Client, id: str) -> int:
    found = client.get(id)
    assert found is not None
    return found.due_ms - START_MS


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (("--header", "tenant"), ["m0", "m1", "m2"]),
        (("--header", "tenant=blue"), ["m0", "m2"]),
        (("--header", "tenant=blue", "--id-prefix", "m2"), ["m2"]),
        (("--id-prefix", "oth"), ["other"]),
        (("--destination", "rabbitmq:/q"), ["other"]),
        (("--destination", "rabbitmq"), ["other"]),
        (("--destination", "kafka:t", "--id-prefix", "m1"), ["m1"]),
        (("--due-from", NEXT_DAY), ["other"]),
        (("--due-to", "2035-01-01T12:00:00Z"), ["m0", "m1", "m2"]),
        (("--attempts", "1"), []),
        (("--reason", "unroutable"), []),
    ],
    ids=str,
)
@pytest.mark.usefixtures("client")
def test_a_list_shows_the_messages_that_fit_and_a_bulk_verb_counts_them(
    run: Run, filters: tuple[str, ...], expected: list[str]
) -> None:
    shown = run("--json", "message", "ls", *filters)
    assert [each["id"] for each in shown.objects] == expected
    counted = run("--json", "message", "cancel", *filters, "--dry-run")
    assert counted.objects[0]["matched"] == len(expected)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("wrong", ["kafka:a/b", "kafka/t", "rabbitmq:", "nowhere:x", "kafak"])
def test_an_address_that_cannot_exist_is_refused_by_every_command(run: Run, wrong: str) -> None:
    for command in (
        *(
            "message ls",
            "dead ls",
            "horizon",
            "tail",
            "message cancel --yes",
            "dead kick --dry-run",
        ),
        "message reschedule --in 1h --yes",
    ):
        assert run(*command.split(), "--destination", wrong).code == 2, command
    for verb in ("show", "pause --new", "limit --rate 5 --new", f"purge --confirm {wrong}"):
        assert run("destination", *verb.split(), wrong).code == 2, verb


@pytest.mark.usefixtures("client")
def test_a_header_without_a_name_is_refused(run: Run) -> None:
    for command in (("message", "ls"), ("dead", "ls"), ("message", "cancel", "--yes")):
        refused = run(*command, "--header", "=x")
        assert refused.code == 2 and "NAME=VALUE" in refused.err


def test_messages_are_moved_by_an_offset(run: Run, client: Client) -> None:
    assert run("message", "reschedule", "m0", "--by", "-1h").out == "m0  rescheduled\n"
    assert due_ms(client, "m0") == -HOUR_MS
    several = run("message", "reschedule", "m0", "nothing", "m1", "m0", "--by", "90s")
    assert several.code == 6
    assert several.out.split()[::2] == ["m0", "nothing", "m1"]
    assert several.out.split()[1::2] == ["rescheduled", "unknown", "rescheduled"]
    assert (due_ms(client, "m0"), due_ms(client, "m1")) == (90_000 - HOUR_MS, 90_000)
    moved = run("message", "reschedule", "--header", "tenant=blue", "--by", "+10m", "--yes")
    assert (moved.code, moved.err) == (0, "2 rescheduled\n")
    assert due_ms(client, "m2") == 600_000
    assert (due_ms(client, "m1"), due_ms(client, "other")) == (90_000, DAY_MS)
    assert run("message", "reschedule", "nothing", "--by", "+1h").code == 3


def test_dead_messages_are_listed_and_counted_by_what_fits(
    run: Run, redis_url: str, namespace: str, store: Store
) -> None:
    why = {"a": "unroutable: gone", "b": "unroutable: lost", "c": "expired: late"}
    dead = [(id, "kafka:t", reason) for id, reason in why.items()]
    with buried(store, redis_url, namespace, {"kafka": "kafka://h"}, dead):
        for filters, expected in (
            (("--reason", "unroutable"), ["a", "b"]),
            (("--header", "h=c"), ["c"]),
            (("--attempts", "2"), []),
            (("--destination", "kafka:u"), []),
        ):
            shown = run("--json", "dead", "ls", *filters)
            assert sorted(each["id"] for each in shown.objects) == expected
        groups = run("--json", "dead", "ls", "--by-reason", "--reason", "unroutable")
        (group,) = groups.objects
        assert (group["reason"], group["count"]) == ("unroutable", 2)
