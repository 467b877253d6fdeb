"""The gate of durability: what a server's INFO says against what is promised."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ResponseError

from delaybridge.operate.doctor.durability import durability
from delaybridge.settings.durability import check_durability, read_durability
from delaybridge.store.namespace.gate import Shortfall, shortfalls
from delaybridge.store.protocol.verbs import plain
from delaybridge.store.redis.durability import assurance_of

ONLINE = "ip=10.0.0.2,port=6379,state=online,offset=5,lag=0"


def server(**fields: str) -> dict[str, dict[str, str]]:
    """INFO by section: all is well, but for these fields."""
    found: dict[str, dict[str, str]] = {
        "server": {"redis_version": "7.4.2"},
        "memory": {"maxmemory_policy": "noeviction"},
        "persistence": {"aof_enabled": "1", "aof_last_write_status": "ok"},
        "replication": {"slave0": ONLINE, "slave1": ONLINE, "min_slaves_good_slaves": "2"},
        "config": {"appendfsync": "everysec"},
    }
    for name, value in fields.items():
        section, _, field = name.partition("__")
        if field:
            found[section][field] = value
        else:
            found[section] = {}
    return found


@pytest.mark.parametrize(
    "durability, fields, what",
    [
        ("memory", {"persistence__aof_enabled": "0"}, ""),
        ("replicated:2", {"persistence__aof_enabled": "0"}, ""),
        ("aof", {}, ""),
        ("aof", {"persistence__aof_enabled": "0"}, "appendonly is no"),
        ("aof-fsync", {"persistence__aof_enabled": "0"}, "appendonly is no"),
        ("aof-fsync", {}, ""),
        ("aof-fsync", {"server__redis_version": "7.0.15"}, "appendfsync is everysec"),
        ("aof-fsync", {"server__redis_version": "7.0.15", "config__appendfsync": "always"}, ""),
        ("aof-fsync", {"server__redis_version": "6.2.14", "config": ""}, "CONFIG GET is refused"),
        ("aof-fsync", {"server__redis_version": "7.2.0"}, ""),
        ("replicated:2", {}, ""),
        ("replicated:3", {}, "2 of 3 replicas are online"),
        (
            "replicated:2",
            {"replication__slave1": ONLINE.replace("online", "wait_bgsave")},
            "1 of 2",
        ),
        ("replicated:2", {"replication__slave1": ONLINE.replace("lag=0", "lag=11")}, "1 of 2"),
        ("replicated:1", {"replication": ""}, "0 of 1"),
        ("memory", {"memory__maxmemory_policy": "allkeys-lru"}, "a full Redis would drop messages"),
        ("aof", {"persistence__aof_last_write_status": "err"}, "the last write to the append-only"),
    ],
)
def test_what_is_lacking_is_named(durability: str, fields: dict[str, Any], what: str) -> None:
    found = [str(e) for e in shortfalls(check_durability(durability), server(**fields))]
    hard = [text for text in found if "min-replicas" not in text]
    assert [what in text for text in hard] == ([True] if what else [])


def test_without_min_replicas_the_promise_holds_but_a_warning_says_what_to_set() -> None:
    fields = server()
    del fields["replication"]["min_slaves_good_slaves"]
    (found,) = shortfalls(check_durability("replicated:2"), fields)
    assert found.is_mild
    assert "min-replicas-to-write 1" in found.remedy


@pytest.mark.parametrize("text", ["replicated", "replicated:0", "replicated:10", "AOF", None])
def test_what_is_no_durability_is_refused(text: object) -> None:
    assert read_durability(text) is None


@pytest.mark.parametrize("text", ["memory", "aof", "aof-fsync", "replicated:9"])
def test_a_durability_is_written_as_it_is_read(text: str) -> None:
    assert str(check_durability(text)) == text


def test_waitaof_is_believed_for_as_long_as_it_answers() -> None:
    assurance = assurance_of(read_durability("aof-fsync"))
    assert assurance is not None
    unknown = ResponseError("in other words: no WAITAOF")
    everysec = [b"appendonly", b"yes", b"appendfsync", b"everysec"]

    def asked() -> int:
        return len(assurance.requests(plain("SET", "{n:1}:lease", 1), 1.0))

    before_upgrade = assurance.shortfall([b"OK", unknown, everysec])
    assert asked() == 3 and "its appendfsync is everysec" in str(before_upgrade)
    assert assurance.shortfall([b"OK", [1, 0], everysec]) is None
    assert asked() == 2 and assurance.shortfall([b"OK", [1, 0]]) is None
    after_fail_over = assurance.shortfall([b"OK", unknown])
    assert asked() == 3 and "refuses WAITAOF" in str(after_fail_over)


def test_a_promise_is_kept_once_as_many_replicas_as_asked_for_have_a_write_after_it() -> None:
    assurance = assurance_of(read_durability("replicated:2"))
    assert assurance is not None
    write, wait = assurance.requests(plain("SET", "{n:1}:lease", 1), 1.0)
    assert b"SET" in write and b"WAIT\r\n$1\r\n2\r\n" in wait
    assert [assurance.shortfall([b"OK", n]) is None for n in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("mild", "levels"), [((), ["ok"]), ((True,), ["WARN", "ok"]), ((True, False), ["WARN", "FAIL"])]
)
def test_doctor_says_ok_unless_something_that_counts_is_lacking(
    mild: tuple[bool, ...], levels: list[str]
) -> None:
    lacking = [Shortfall(f"{n}", "mend it", is_mild=each) for n, each in enumerate(mild)]
    settings: Any = SimpleNamespace(durability="aof")
    assert [found.level for found in durability(lacking, settings)] == levels
