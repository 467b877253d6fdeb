"""Comparisons of rules and definitions: which is under way, and what each of its parts writes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from delaybridge.ledger.comparing import reinstating
from delaybridge.recurring import stored
from delaybridge.recurring.runs import RunMaking
from delaybridge.store.calls import Calls
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import Work
from tests.rigs.controls_site import PLACE, ControlsSite

HOUR_MS = 3_600_000
pytestmark = pytest.mark.slow_with("mariadb*", "postgres*")


@pytest.fixture
def site(redis_url: str, namespace: str, ledger_url: str) -> Iterator[ControlsSite]:
    site = ControlsSite(redis_url, namespace, ledger_url)
    yield site
    site.close()


def restarted(site: ControlsSite) -> None:
    """Redis has what it had, in another run."""
    site.redis.hset(keys.controls(site.namespace), "healed", "another run:x")


def test_every_page_comes_back(site: ControlsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reinstating, "_PAGE", 2)
    places = [f"kafka:t{n}" for n in range(5)]
    rules = {place: json.dumps({"rate": 1 + n}) for n, place in enumerate(places)}
    site.redis.hset(keys.destinations(site.namespace), mapping=rules)  # type: ignore[arg-type]
    site.agree()
    assert all(site.changed_ms("rate", place) for place in places), "they are of now"
    site.wipe()
    assert site.agree() == 5
    assert [site.rule(place) for place in places] == [{"rate": 1 + n} for n in range(5)]


@pytest.mark.parametrize(
    ("run", "who", "ago_ms", "begins"),
    [
        ("this", "other", 0, False),
        ("this", "other", 16_000, True),
        ("this", "other", -HOUR_MS, True),  # the clock was set back
        ("this", "w", 0, True),
        ("another", "other", 0, True),
    ],
)
def test_another_comparison_of_this_run_that_began_lately_is_left_to_end(
    site: ControlsSite, run: str, who: str, ago_ms: int, begins: bool
) -> None:
    run_id = site.redis.info("server")["run_id"] if run == "this" else run
    began_ms = site.client.run(Calls.now_ms) - ago_ms
    name = keys.controls(site.namespace)
    site.redis.hset(name, "healed", f"?{run_id}:{began_ms}.name.{who}")
    assert site.agree("w") == (0 if begins else None)
    assert site.are_agreed == begins


def test_a_comparison_that_is_overtaken_before_its_last_call_is_in_vain(site: ControlsSite) -> None:
    site.client.destinations.pause(PLACE)
    site.wipe()
    steps = site.agreeing()
    asked = next(steps)
    with pytest.raises(StopIteration) as ended:
        while True:
            if not isinstance(asked, Work):
                if asked[0].name == "reinstate" and asked[0].args[2][:1] not in ("", "?"):
                    site.other.destinations.set_rule(PLACE, rate=5.0)
                answer = site.store.run(asked)
            else:
                answer = site.recorder.ledger.run(asked)
            asked = steps.send(answer)
    assert ended.value.value is None
    assert not site.are_agreed
    assert site.agree() == 0
    assert site.rule()["rate"] == 5


def test_a_rule_that_was_removed_and_is_gone_leaves_no_time(site: ControlsSite) -> None:
    site.client.destinations.pause(PLACE)
    site.redis.hdel(keys.destinations(site.namespace), PLACE)
    site.record(None, site.changed_ms("paused") + 1)
    restarted(site)
    site.agree()
    assert site.changed_ms("paused") == 0
    assert site.rule() == {}


def test_of_two_changes_the_earlier_stays_until_it_is_recorded(site: ControlsSite) -> None:
    site.client.destinations.pause("kafka:a")
    site.client.destinations.pause("kafka:b")
    (times,) = site.store.run([reinstating.unrecorded(site.namespace, 9)])
    later = {b"rule:paused:kafka:b": times[b"rule:paused:kafka:b"]}
    found = site.store.complete(reinstating.read_changed(site.namespace, later))
    site.store.run(reinstating.recorded(site.namespace, found))
    (left,) = site.store.run([reinstating.unrecorded(site.namespace, 9)])
    assert left == {b"rule:paused:kafka:a": times[b"rule:paused:kafka:a"]}


def test_runs_that_redis_knows_to_be_made_stay_so_and_a_backfill_begins_again(
    site: ControlsSite,
) -> None:
    site.client.recurring.add("often", "kafka:often", "x", every="1h")
    site.agree()
    (definition,) = (each.definition for each in site.client.recurring.list())
    assert definition is not None
    sources = RunMaking(site.calls).bucket_for(definition).key("sources")
    name = keys.recurring(site.namespace)
    fields = json.loads(site.redis.hget(name, "often") or b"")  # type: ignore[arg-type]
    plan = stored.source_of("often", fields["plan"]["birth"])
    later_ms = site.client.run(Calls.now_ms) + 10 * HOUR_MS
    site.redis.hset(sources, plan, later_ms)
    fields["backfill"] = {"birth": "backfill-1", "from_ms": 7000, "to_ms": 9000}
    site.redis.hset(name, "often", json.dumps(fields))
    site.redis.hincrby(keys.controls(site.namespace), "definition:often")
    restarted(site)
    site.agree()
    assert int(site.redis.hget(sources, plan) or 0) == later_ms  # type: ignore[arg-type]
    begun = site.redis.hget(sources, stored.source_of("often", "backfill-1"))
    assert begun == b"6999", "the run at 7000 is not made yet"
