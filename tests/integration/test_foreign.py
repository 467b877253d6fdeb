"""`message import --from`: what BullMQ stores for later, read from Redis."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from delaybridge import Client
from tests.rigs.command_line import Result, Run
from tests.rigs.foreign_forms import DUE_MS, Forms

NO_HASH = dict.fromkeys(("name", "data", "opts", "timestamp", "delay", "priority"))
TO = "rabbitmq:{queue}/{name}"
Import = Callable[..., Result]


@pytest.fixture
def forms(raw: redis.Redis, namespace: str) -> Forms:
    return Forms(raw, namespace)


@pytest.fixture
def imported(run: Run, redis_url: str, namespace: str) -> Import:
    """Imports what the forms have."""

    def call(*more: str, to: str = TO) -> Result:
        asked = ("message", "import", redis_url, "--from", "bullmq", "--to", to)
        return run("--json", *asked, "--prefix", namespace, *more)

    return call


def left(result: Result) -> dict[str, str]:
    """The field at fault of each entry that stays."""
    lines = [json.loads(line) for line in result.err.splitlines()]
    return {
        each["left_out"]["place"]: each["left_out"]["field"] for each in lines if "left_out" in each
    }


def summary(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.err.splitlines()[-1])["summary"]
    return found


def fill(forms: Forms) -> dict[str, tuple[str, int, dict[str, Any]]]:
    """Store two; id -> destination, due time and body of the message it becomes."""
    ns, welcome = forms.namespace, {"to": "\xe4"}
    forms.bullmq("1")
    forms.bullmq("own-id", at_ms=DUE_MS + 1, data='{"half":"\\ud83d"}', atm=2, name="other")
    job = {"queue": "mails", "id": "1", "name": "welcome", "attempts": 0, "data": welcome}
    other = {"id": "own-id", "name": "other", "attempts": 2, "data": {"half": "\ud83d"}}
    return {
        f"{ns}:mails:1": ("rabbitmq:mails/welcome", DUE_MS, job),
        f"{ns}:mails:own-id": ("rabbitmq:mails/other", DUE_MS + 1, job | other),
    }


def test_what_is_pending_becomes_messages_and_a_second_import_changes_nothing(
    forms: Forms, imported: Import, caller: Client
) -> None:
    expected = fill(forms)
    before = forms.dump()
    # When it is only counted, then nothing is stored
    counted = imported("--dry-run")
    assert (counted.code, caller.stats().delayed) == (0, 0)
    assert summary(counted) == {"created": 2}
    first = min(due_ms for _, due_ms, _ in expected.values())
    assert {each["first_ms"] for each in counted.objects} <= {first, first + 1}
    # When it is imported, then each message has its destination, due time and body
    done = imported()
    assert (done.code, summary(done)) == (0, {"created": 2})
    for id, (destination, due_ms, body) in expected.items():
        found = caller.get(id)
        assert found is not None
        assert (found.destination, found.due_ms) == (destination, due_ms)
        assert json.loads(found.body or b"") == body
        assert found.headers == []
    # When it is imported again, even after a message was rescheduled, then none is there twice
    caller.reschedule(next(iter(expected)), delay="1h")
    assert summary(imported()) == {"duplicate": 2}
    assert caller.stats().delayed == 2
    assert forms.dump() == before


# Entries that cannot be carried, with the field that is named.
BAD: list[tuple[Callable[[Forms], object], str]] = [
    (lambda forms: forms.bullmq("no-hash", **NO_HASH), "name"),
    (lambda forms: forms.bullmq("no-name", name=None), "name"),
    (lambda forms: forms.bullmq("no-json", data="{"), "entry"),
    (lambda forms: forms.bullmq("infinite", data="[1e999]"), "entry"),
    (lambda forms: forms.bullmq("deep", data="[" * 100_000), "entry"),
    (lambda forms: forms.bullmq("large", data=json.dumps("x" * 2**19)), "body"),
    (lambda forms: forms.bullmq("attempts", atm="many"), "entry"),
    (lambda forms: forms.bullmq("child", parentKey="bull:mails:9"), "parentKey"),
    (lambda forms: forms.bullmq("repeats", rjk="every"), "rjk"),
    (lambda forms: forms.bullmq(b"\xff\xfe"), "entry"),
    (lambda forms: forms.bullmq("a\nb"), "id"),
    (lambda forms: forms.bullmq("far", at_ms=DUE_MS // 1000), "at"),
    (lambda forms: forms.bullmq("inf", at_ms=math.inf), "entry"),
    (lambda forms: forms.bullmq("type", is_text=True), "entry"),
]


def test_bad_entries_are_named_and_the_others_are_imported(forms: Forms, imported: Import) -> None:
    fill(forms)
    fields = [field for spoil, field in BAD if spoil(forms) or field]
    done = imported()
    assert done.code == 6
    assert Counter(left(done).values()) == Counter(fields)
    assert summary(done) == {"created": 2, "bad": len(fields)}


def test_keys_of_another_type_and_names_that_are_no_text_stop_nothing(
    forms: Forms, imported: Import
) -> None:
    fill(forms)
    forms.raw.zadd(forms.namespace.encode() + b":\xff:delayed", {"x": 1})
    forms.raw.set(f"{forms.namespace}:other:delayed", "")
    done = imported("--queue", "mails", "--queue", "other", "--queue", "none")
    assert left(done) == {f"{forms.namespace}:other:delayed": "key"}
    assert summary(done) == {"created": 2, "bad": 1}
    assert left(imported()) == {f"{forms.namespace}:\\xff:delayed x": "name"}


REFUSED = [
    ("redis://127.0.0.1:1", "celery-redis", (), 5, "URL"),
    ("amqp://user:secret@127.0.0.1:1", "celery-rabbitmq", (), 5, "URL"),
    ("amqp://127.0.0.1?heartbeat=x", "celery-rabbitmq", (), 2, "URL"),
    ("amqp://127.0.0.1", "celery-redis", (), 2, "URL"),
    ("file", "bullmq", ("--to", TO), 2, "URL"),
    ("redis://127.0.0.1:1", "bull", ("--to", TO), 2, "--from"),
    ("redis://127.0.0.1:1", "bullmq", (), 2, "--to"),
    ("redis://127.0.0.1:1", "bullmq", ("--to", "rabbitmq:{task}"), 2, "--to"),
    ("redis://127.0.0.1:1", "bullmq", ("--to", TO, "--remove"), 2, "--remove"),
    ("redis://127.0.0.1:1", "celery-redis", ("--remove",), 2, "--yes"),
    ("redis://127.0.0.1:1", "celery-redis", ("--after", "1"), 2, "--from"),
]


@pytest.mark.parametrize(("url", "system", "more", "code", "field"), REFUSED)
def test_what_cannot_be_read_is_refused_and_the_option_named(
    run: Run, url: str, system: str, more: tuple[str, ...], code: int, field: str
) -> None:
    refused = run("--json", "message", "import", url, "--from", system, *more)
    assert (refused.code, refused.error["field"]) == (code, field)
    assert "secret" not in refused.err
