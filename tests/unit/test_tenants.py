"""Tenants: how a record names one, which ids a source may name, and where settings name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.accept.accept import Accepted, Drafting, accept
from delaybridge.errors import ConfigError, MessageError
from delaybridge.ingest.entries import Quarantine, Schedule
from delaybridge.ingest.names import Names, tenant_of
from delaybridge.ingest.rabbitmq.messages import MessageReader
from delaybridge.ingest.reach import AllowList
from delaybridge.message import (
    Delivery,
    Destination,
    Limits,
    Message,
    MessagePlan,
    PlannedRecord,
    Record,
    decode_record,
    encode_record,
    is_tenant,
    planned,
    tenant_text,
)
from delaybridge.serve.access.tokens import TokenFile
from delaybridge.serve.api.operations.stream import Stream
from delaybridge.serve.shared.event_fanout import Kept
from delaybridge.serve.shared.tenancy import Tenancy
from delaybridge.settings.settings import Settings
from delaybridge.worker.reload import reread
from tests.rigs import raw_messages

KINDS = {"rabbitmq": "rabbitmq", "kafka": "kafka"}
NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,30}\Z")
RECORD = Record("kafka:t", b"body", (("a", b"b"),), None, b"key", 3, 60_000, False)
PLAN = MessagePlan(max_attempts=3)
TOKEN = "Zr7qK2mVx9TbWc4P-one"


@given(NAMES, st.none() | st.just(PLAN), st.binary(max_size=300))
def test_the_tenant_is_the_tenth_item_of_a_record(
    tenant: str, plan: MessagePlan | None, body: bytes
) -> None:
    made = encode_record(planned(msgspec.structs.replace(RECORD, body=body), plan, tenant))
    assert msgspec.msgpack.decode(made)[9] == tenant
    read = decode_record(made)
    assert (read.tenant, read.retry, read.body) == (tenant, plan, body)
    assert tenant_text(made) == tenant_text(made[:1] + made[-32:]) == tenant


def test_a_record_of_no_tenant_is_as_it_was() -> None:
    assert planned(RECORD, None) is RECORD
    assert type(planned(RECORD, PLAN)) is PlannedRecord
    for plan in (None, PLAN):
        made = encode_record(planned(RECORD, plan))
        assert len(msgspec.msgpack.decode(made)) == (8 if plan is None else 9)
        assert decode_record(made).tenant == tenant_text(made) == ""


def test_an_invalid_plan_does_not_cost_a_record_its_tenant() -> None:
    items = msgspec.msgpack.decode(encode_record(planned(RECORD, PLAN, "acme")))
    items[8] = ["of", "a", "later", "version", 1]
    read = decode_record(msgspec.msgpack.encode(items))
    assert (read.tenant, read.retry) == ("acme", None)


@given(st.binary())
def test_any_bytes_have_a_tenant_or_none(data: bytes) -> None:
    assert isinstance(tenant_text(b"\x9a" + data), str)


@pytest.mark.parametrize("name", ["", "a/b", "-a", ".a", "a b", "é", "a\n", "x" * 32, None, 1])
def test_a_name_that_no_tenant_may_have(name: Any) -> None:
    assert not is_tenant(name)
    if name:
        with pytest.raises(MessageError, match="bad_tenant"):
            accept(Message("kafka:t", b"", delay=1, tenant=name), KINDS, Limits())


@pytest.mark.parametrize("id", ["invoice-3", "other/invoice-3", "acme/invoice-3", "é", None])
def test_a_message_is_stored_with_its_tenant_and_delivered_without(id: str | None) -> None:
    message = Message("kafka:t", b"", delay=1, id=id, tenant="acme")
    (made,) = Drafting(KINDS, Limits(), lambda: "drawn").drafts([message])
    assert made.id == f"acme/{id or 'drawn'}"
    record = decode_record(made.payload)  # type: ignore[union-attr]  # not a draft
    delivery = Delivery(made.id, record, Destination("kafka", "kafka", "t"), 0, 1)
    assert (delivery.id, delivery.given_id) == (made.id, id or "drawn")


@pytest.mark.parametrize("fields", [{}, {"key": b"k"}])
def test_a_message_to_a_pull_topic_of_a_tenant_is_that_tenants(fields: dict[str, Any]) -> None:
    """A message of nobody could be received there, but not finished."""
    ids = ["o1", "acme/o2", "beta/o3", None]
    messages = [Message("pull:acme/t", b"", delay=1, id=id, **fields) for id in ids]
    plain = Message("pull:t", b"", delay=1, id="acme/o2", **fields)
    drafting = Drafting(KINDS, Limits(), lambda: "drawn")
    *made, other = drafting.drafts([*messages, plain])
    assert [one.id for one in made] == ["acme/o1", "acme/o2", "acme/beta/o3", "acme/drawn"]
    assert {tenant_text(one.payload) for one in made} == {"acme"}  # type: ignore[union-attr]
    assert other.id == "acme/o2"
    payload = other.payload if isinstance(other, Accepted) else other.accepted("").payload
    assert tenant_text(payload) == ""


def test_a_message_to_another_tenants_pull_topic_is_refused() -> None:
    with pytest.raises(MessageError, match="bad_destination"):
        accept(Message("pull:acme/t", b"", delay=1, tenant="beta"), KINDS, Limits())


def test_an_id_with_a_slash_of_no_tenant_is_delivered_as_it_is() -> None:
    delivery = Delivery("acme/x", RECORD, Destination("kafka", "kafka", "t"), 0, 1)
    assert delivery.given_id == "acme/x"


def test_the_name_of_the_tenant_counts_among_the_bytes_of_an_id() -> None:
    for size in (250, 251):
        message = Message("kafka:t", b"", delay=1, id="x" * size, tenant="acme")
        if size == 250:
            assert len(accept(message, KINDS, Limits()).id) == 255
        else:
            with pytest.raises(MessageError, match="251 bytes; give 1 to 250"):
                accept(message, KINDS, Limits())


def test_a_source_of_no_tenant_may_not_name_ids_of_one() -> None:
    nobody, acme = Names(tenants=("acme", "beta")), Names("acme", ("acme", "beta"))
    assert nobody.stored("acme", Limits()) == "acme"
    assert nobody.stored("acme2/x", Limits()) == "acme2/x"
    assert acme.stored("beta/x", Limits()) == "acme/beta/x"
    with pytest.raises(MessageError, match="bad_id"):
        nobody.stored("beta/x", Limits())


def test_the_first_rule_that_fits_names_the_tenant_of_a_source() -> None:
    rules = ("orders.delay=acme", "eu:*=beta", "*=rest")
    named = {
        "orders.delay": "acme", "other.delay": "rest"
    }  # fmt: skip
    for source, tenant in named.items():
        assert tenant_of("kafka", source, rules) == tenant
    assert tenant_of("eu", "other.delay", rules) == "beta"
    assert tenant_of("eu", "other.delay", rules[:1]) == ""
    odd = ("orders[eu].delay=acme", "a?b*=beta")
    assert tenant_of("rabbitmq", "orders[eu].delay", odd) == "acme"
    assert tenant_of("rabbitmq", "ordersu.delay", odd) == tenant_of("rabbitmq", "axb", odd) == ""


@pytest.mark.parametrize(
    ("place", "is_own"),
    [
        *(("pull:acme/t", True), ("pull:acmex/t", False), ("pull:t", False)),
        *(("http:acme/hook", False), ("hook:acme/x", False)),
    ],
)
def test_a_tenants_events_are_those_of_its_pull_topics(place: str, is_own: bool) -> None:
    stream = Stream.__new__(Stream)
    stream._own, stream._tenants = Tenancy("acme"), ()
    assert stream._is_own(Kept("1", 1, "e", place, "", b"")) is is_own


@pytest.mark.parametrize(
    ("sources", "idle"),
    [
        ({"exchanges": ["rabbitmq:orders.delay"]}, ["acme-*.delay=acme", "kafka:pay.delay=acme"]),
        ({"topics": ["kafka:*.delay"]}, []),
        ({"topics": ["kafka:pay*.delay"]}, ["orders.delay=acme"]),
        ({}, []),  # they are named on the command line
    ],
)
def test_a_rule_that_fits_no_source_is_told(sources: dict[str, Any], idle: list[str]) -> None:
    rules = ["orders.delay=acme", "acme-*.delay=acme", "kafka:pay.delay=acme"]
    given = {
        "brokers": {"rabbitmq": "amqp://127.0.0.1", "kafka": "kafka://127.0.0.1"},
        "tenants": ["acme"], "ingest": {**sources, "tenants": rules},
    }  # fmt: skip
    found = Settings.load(overrides=given, environ={}).cautions()
    assert [text.split("'")[1] for text in found if "ingest.tenants" in text] == idle


def test_a_quarantined_message_without_an_id_stays_with_its_tenant() -> None:
    payload = encode_record(planned(RECORD, None, "acme"))
    kept = Quarantine.with_own_id(None, b"1234", payload, "why")
    assert kept.id.startswith("acme/")
    assert kept.elsewhere().id.startswith("acme/")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"tenants": "acme,a/b"}, "tenants: .*a list of names"),
        ({"tenants": ["acme", "acme"]}, "tenants: .*each once"),
        ({"ingest": {"tenants": ["a.delay=acme"]}}, "'acme' is not among tenants"),
        ({"tenants": ["acme"], "ingest": {"tenants": ["acme"]}}, "a list of SOURCE=TENANT"),
        ({"limits": {"tenants": ["acme=1/0"]}}, "limits.tenants: .*'acme' is not among tenants"),
        ({"tenants": ["acme"], "limits": {"tenants": ["acme=1"]}}, "a list of NAME=MESSAGES/BYTES"),
        ({"tenants": ["acme"], "limits": {"tenants": "acme=1/0,acme=2/0"}}, "each tenant once"),
    ],
)
def test_tenants_that_are_wrong_are_refused(overrides: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Settings.load(overrides=overrides, environ={})


def test_a_tenant_may_have_limits_of_its_own() -> None:
    environ = {"DELAYBRIDGE_TENANTS": "acme,beta", "DELAYBRIDGE_LIMITS__TENANT_MESSAGES": "5"}
    environ["DELAYBRIDGE_LIMITS__TENANTS"] = "acme=500000/0,beta=0/7"
    limits = Settings.load(environ=environ).limits.as_limits()
    assert limits.tenants == {"acme": (500_000, 0), "beta": (0, 7)}
    assert (limits.tenant_messages, limits.tenant_bytes) == (5, 0)


def test_a_token_may_have_a_tenant(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN} write shop acme\n{TOKEN}2 read\n")
    assert [each.tenant for each in TokenFile(str(file), ("acme",)).all()] == ["acme", ""]
    with pytest.raises(ConfigError, match=r"line 1: 'acme' is not among tenants: beta"):
        TokenFile(str(file), ("beta",))


@pytest.mark.parametrize("tenant", ["acme", ""])
def test_messages_of_one_form_are_named_alike(tenant: str) -> None:
    """The third one is read by what is known of the first two."""
    names = Names(tenant, ("acme", "beta"))
    reader = MessageReader(
        raw_messages.ROUTE, KINDS, Limits(), AllowList(()), ["x.delay"], "", names
    )
    for id in ("m", "n", "beta/o", "acme/p", "o"):
        entry = reader.read(raw_messages.delivered({"x-delay": 1000}, message_id=id), b"1234")
        if "/" in id and not tenant:
            assert isinstance(entry, Quarantine)
        else:
            assert isinstance(entry, Schedule)
            stored = f"{tenant}/{id}" if tenant else id
            assert (entry.accepted.id, entry.accepted.shard_key) == (stored, stored.encode())
            assert tenant_text(entry.payload) == tenant


def test_the_longest_id_of_a_form_leaves_room_for_the_tenant() -> None:
    names = Names("acme", ("acme",))
    reader = MessageReader(
        raw_messages.ROUTE, KINDS, Limits(), AllowList(()), ["x.delay"], "", names
    )
    for id in ("m", "n", "x" * 250, "x" * 251):
        entry = reader.read(raw_messages.delivered({"x-delay": 1000}, message_id=id), b"1234")
        assert isinstance(entry, Quarantine if len(id) > 250 else Schedule)


def test_sighup_takes_tenants_with_their_sources(tmp_path: Path) -> None:
    file = tmp_path / "delaybridge.toml"
    file.write_text("")
    settings = Settings.load(file, environ={})
    file.write_text('tenants = ["acme"]\n[ingest]\ntenants = ["a.delay=acme"]\n')
    taken = reread(settings)
    assert taken is not None
    assert (taken.tenants, taken.ingest.tenants) == (("acme",), ("a.delay=acme",))
    file.write_text('[ingest]\ntenants = ["a.delay=acme"]\n')
    assert reread(taken) is None
