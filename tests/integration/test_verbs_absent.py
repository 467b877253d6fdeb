"""Verbs about messages that Redis lost, or that are cold: of ingest, of several buckets, of many.

tests/integration/test_verbs_by_record.py has each verb by id and by filter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from delaybridge import Answer, Client, Selection
from delaybridge.errors import StoreDamaged
from delaybridge.ingest.entries import Change
from delaybridge.ingest.storing import store_entries
from delaybridge.ledger.comparing.agreement import WantedRows
from delaybridge.ledger.comparing.restoring import restore_all
from delaybridge.store.protocol import keys, verbs
from delaybridge.store.protocol.verbs import Work
from tests.rigs.ledgers import LedgerProbe

TO = "memory:a"
BUCKETS = 4
HOT_S, COLD_S = 900, 7200
OTHERS = pytest.mark.slow_with("mariadb*", "postgres*")


class Site:
    """A client with a ledger, and its Redis."""

    def __init__(self, client: Client, raw: redis.Redis, namespace: str) -> None:
        self.client, self.raw, self._namespace = client, raw, namespace

    def lose(self) -> None:
        """Redis is wiped."""
        names = [*self.raw.scan_iter(f"{{{self._namespace}:*"), keys.birth(self._namespace)]
        self.raw.delete(*names)

    def rebuild(self) -> None:
        """As workers do."""
        recorder = self.client._store.recorder
        assert recorder is not None
        records = recorder.records
        self.client.run(lambda calls: restore_all(calls, records, WantedRows(), lambda _: None))

    def delay_s(self, id: str, key: str | None = None) -> float | None:
        """How long it is still delayed; None if it is not there."""
        found = self.client.get(id, key=key)
        return None if found is None or found.due_ms is None else found.due_ms / 1000 - time.time()

    def key(self, number: int, name: str) -> str:
        return self.client.run(lambda calls: calls.open())[number].key(name)


@pytest.fixture
def site(redis_url: str, namespace: str, ledger_url: str) -> Iterator[Site]:
    with (
        redis.Redis.from_url(redis_url) as raw,
        Client(
            redis_url, namespace=namespace, brokers={"memory": "memory://"}, buckets=BUCKETS,
            durability="ledger", ledger=ledger_url, hot_window_s=3600,
        ) as client,
    ):  # fmt: skip
        yield Site(client, raw, namespace)


# read from a source


@OTHERS
@pytest.mark.parametrize("how", [{"reach": '[["^memory:a"]]'}, {"source": "t/0", "offset": 7}])
@pytest.mark.parametrize("state", ["cold", "lost"])
def test_what_ingest_cancels_or_reschedules_is_meant_also_if_redis_lacks_it(
    site: Site, state: str, how: dict[str, Any]
) -> None:
    for id in ("gone", "later"):
        site.client.schedule(TO, b"x", id=id, delay=HOT_S if state == "lost" else COLD_S)
    if state == "lost":
        site.lose()
    changes = {"gone": ("", Answer.CANCELLED), "later": ("+9999000", Answer.RESCHEDULED)}
    for offset, (id, (when, answer)) in enumerate(changes.items()):
        place = {"offset": 7 + offset} if "source" in how else {}
        change = Change(id, None, b"stamp"[:4], when=when, **{**how, **place})
        assert site.client.run(lambda calls, c=change: store_entries(calls, [c])) == [answer]
    site.rebuild()
    assert site.delay_s("gone") is None
    assert 9900 < (site.delay_s("later") or 0) < 10_000


# an older past


@OTHERS
def test_a_message_is_replaced_though_redis_has_an_older_past(
    site: Site, ledger: LedgerProbe
) -> None:
    site.client.schedule(TO, b"other", id="other", delay=HOT_S)
    site.client.schedule(TO, b"first", id="m", delay=HOT_S)
    for number in range(BUCKETS):  # Redis has started again with what it had before `m`
        site.raw.hset(site.key(number, "marks"), "healed", "earlier-run:w:1:1")
        site.raw.hdel(site.key(number, "messages"), "m")
        site.raw.zrem(site.key(number, "due"), "m")
    receipt = site.client.schedule(TO, b"second", id="m", delay=HOT_S, on_conflict="replace")
    assert receipt.answer is Answer.REPLACED
    site.rebuild()
    found = site.client.get("m")
    assert found is not None and found.body == b"second"
    assert ledger.ask("SELECT count(*) FROM message WHERE id = 'm' AND tier > 0") == [(1,)]


# several buckets


@OTHERS
@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
def test_an_id_under_two_keys_is_meant_in_both(site: Site, verb: str) -> None:
    one, *others = (f"k{number}" for number in range(20))
    two = next(k for k in others if bucket(k) != bucket(one))
    site.client.schedule(TO, b"hot", id="m", key=one, delay=HOT_S)
    site.client.schedule(TO, b"cold", id="m", key=two, delay=COLD_S)
    if verb == "cancel":
        assert site.client.cancel("m") is Answer.CANCELLED
        assert [site.delay_s("m", key) for key in (one, two)] == [None, None]
    else:
        assert site.client.reschedule("m", delay=9999) is Answer.RESCHEDULED
        assert all((site.delay_s("m", key) or 0) > 9900 for key in (one, two))


def bucket(key: str) -> int:
    return verbs.bucket_of(key.encode(), BUCKETS)


# many


def test_verbs_for_many_take_few_transactions(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"m{number}" for number in range(40)]
    for id in ids:
        site.client.schedule(TO, b"x", id=id, delay=COLD_S)
    recorder, works = site.client._store.recorder, list[Work[Any]]()
    assert recorder is not None
    run = recorder.ledger.run
    monkeypatch.setattr(recorder.ledger, "run", lambda work: works.append(work) or run(work))
    assert {*site.client.reschedule_many(ids, delay=9999)} == {Answer.RESCHEDULED}
    assert {*site.client.dead.discard_many([f"n{id}" for id in ids])} == {Answer.UNKNOWN}
    assert {*site.client.cancel_many(ids)} == {Answer.CANCELLED}
    assert len(works) < 20


# a damaged bucket


@OTHERS
def test_a_damaged_bucket_hides_nothing_of_the_others(site: Site) -> None:
    ids = {f"m{number}" for number in range(16)}
    for id in ids:
        site.client.schedule(TO, b"x", id=id, delay=HOT_S)
    damaged, lost = ({id for id in ids if bucket(id) == number} for number in (0, 1))
    site.raw.set(site.key(0, "due"), "no zset")
    site.raw.delete(site.key(1, "due"), site.key(1, "messages"))
    found: set[str] = set()
    with pytest.raises(StoreDamaged):
        for page in site.client.select(Selection(place=TO)):
            found |= {each.id for each in page}
            assert {*site.client.cancel_many(page)} <= {Answer.CANCELLED}
    assert lost <= found == ids - damaged


# a dry run


@OTHERS
def test_a_dry_run_says_what_becomes_of_what_redis_lacks(site: Site) -> None:
    delays = {"m0": HOT_S, "m1": HOT_S, "m2": COLD_S}
    for id, delay in delays.items():
        site.client.schedule(TO, b"x", id=id, delay=delay)
    site.lose()
    cancelled, rescheduled = [Answer.CANCELLED] * 3, [Answer.RESCHEDULED] * 3
    assert site.client.cancel_many(delays, dry_run=True) == cancelled
    assert site.client.reschedule_many(delays, delay=999, dry_run=True) == rescheduled
    assert site.client.dead.kick_many(delays, dry_run=True) == [Answer.UNKNOWN] * 3
    assert site.client.get("m0") is None, "it has brought one"
    assert site.client.cancel_many(delays) == cancelled
    assert site.client.cancel_many(delays, dry_run=True) == [Answer.UNKNOWN] * 3
