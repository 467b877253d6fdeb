"""Mutants of what keeps tenants of one namespace apart."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_WEB, _INGEST = "tests/integration/test_tenants.py", "tests/integration/test_ingest_tenants.py"
_UNIT = "tests/unit/test_tenants.py"
MUTANTS = [
    Mutant(
        "tenants: delivered as it is stored", "delaybridge/message.py",
        "return id_as_given(id, self.tenant) if self.tenant else id", "return id",
        "consumers get another id than the producer gave",
        f"{_INGEST}::test_rabbitmq",
    ),
    Mutant(
        "tenants: an invalid plan takes the tenant", "delaybridge/message.py",
        "kept[_PLAN] = None", "kept = kept[:_PLAN]",
        "a message is delivered with its tenant in front of its id",
        _UNIT,
    ),
    Mutant(
        "tenants: anybody squats", "delaybridge/ingest/names.py",
        "if not self.may_name(checked):", "if False:",
        "a source of no tenant takes an id before its owner does",
        _UNIT,
    ),
    Mutant(
        "tenants: a tombstone from elsewhere", "delaybridge/ingest/kafka/records.py",
        "if self._names.may_name(id):", "if True:",
        "a source of no tenant cancels a tenant's message",
        f"{_INGEST}::TestKafka",
    ),
    Mutant(
        "tenants: the quick way names anything", "delaybridge/ingest/rabbitmq/forms.py",
        "not self._names.may_name(id := self._prefix + id):", "not (id := self._prefix + id):",
        "the third message of a form takes an id of a tenant",
        _UNIT,
    ),
    Mutant(
        "tenants: what is everybody's", "delaybridge/serve/access/access.py",
        "if who.tenant and not endpoint.is_for_tenants and", "if False and",
        "a tenant's token pauses everybody's destinations",
        f"{_WEB} -k operators",
    ),
    Mutant(
        "tenants: a cursor tells", "delaybridge/serve/shared/tenancy.py",
        "if cursor is None or cursor[1].startswith(self.prefix):", "if True:",
        "a cursor has an id of another tenant",
        f"{_WEB} -k cursor_says",
    ),
    Mutant(
        "tenants: all that match", "delaybridge/serve/shared/tenancy.py",
        "prefix = self.prefix + selection.id_prefix", "prefix = selection.id_prefix",
        "a bulk verb cancels everybody's messages",
        f"{_WEB} -k bulk",
    ),
    Mutant(
        "tenants: one topic for all", "delaybridge/accept/accept.py",
        "cache.parse(of_tenant(canonical, owner), kinds)", "destination, canonical",
        "a consumer receives what another tenant was sent",
        f"{_WEB} -k pull_topic",
    ),
    Mutant(
        "idempotency: a key that can be computed", "delaybridge/serve/api/messages/idempotency.py",
        "msgspec.msgpack.encode((token, key))", 'msgspec.msgpack.encode((b"", key))',
        "whoever knows a key takes the id of the message that another asks for with it",
        f"{_WEB} -k idempotency",
    ),
]  # fmt: skip
