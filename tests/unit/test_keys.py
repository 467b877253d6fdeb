"""Names of keys: one hash tag per bucket, and the same keys in docs/keys.md as in keys.py."""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections import Counter
from math import ceil
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.errors import ConfigError
from delaybridge.settings.namespace import MAX_BUCKETS, check_buckets, check_namespace
from delaybridge.store.protocol import keys, verbs
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.keys import LISTED, SCRIPT_KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "keys.md").read_text()
OF_BUCKET, OF_NAMESPACE = PAGE.split("## Of the namespace")
ROW = re.compile(r"^\| `(\w+)` \|", re.M)
SLOTS = 16_384
OF_THE_NAMESPACE = (
    *(keys.birth, keys.workers, keys.worker_info, keys.ingests, keys.ingest_info),
    *(keys.fronts, keys.front_info),
    keys.fronted,
    *(keys.destinations, keys.controls, keys.unrecorded, keys.ledger, keys.allowances, keys.series),
    *(keys.alarms, keys.events),
    *(
        keys.jobs,
        keys.audit,
        keys.audit_others,
        keys.session_secret,
        keys.sessions_ended,
        keys.idempotency,
        keys.recurring,
        keys.recurring_due,
        keys.recurring_state,
        keys.waits,
        keys.offers,
        keys.wake,
    ),
)
# A busy machine must not fail these.


def slot(key: str) -> int:
    """The slot of a Redis Cluster: CRC-16 (XMODEM) of the text in the first braces."""
    tag = re.search(r"\{([^}]+)\}", key)
    return crc_hqx((tag.group(1) if tag else key).encode(), 0) % SLOTS


@given(st.binary(), st.sampled_from([2**n for n in range(15)]))
def test_the_bucket_is_zlibs_crc32_modulo_the_count(shard_key: bytes, buckets: int) -> None:
    assert verbs.bucket_of(shard_key, buckets) == crc32(shard_key) % buckets


@pytest.mark.parametrize(
    ("shard_key", "bucket"), [(b"", 0), (b"123456789", 0xCBF43926 % 16), ("é€".encode(), 13)]
)
def test_the_bucket_of_a_message_never_changes_between_versions(
    shard_key: bytes, bucket: int
) -> None:
    assert verbs.bucket_of(shard_key, 16) == bucket


@pytest.mark.parametrize("namespace", ["delaybridge", "a", "x.y_z-1", "N" * 64])
@pytest.mark.parametrize("number", [0, 15, MAX_BUCKETS - 1])
def test_the_keys_of_a_bucket_are_in_one_slot(namespace: str, number: int) -> None:
    names = [keys.bucket_key(namespace, number, name) for name in keys.BUCKET_KEYS]
    assert len(set(names)) == len(keys.BUCKET_KEYS)
    assert {slot(name) for name in names} == {slot(f"{{{namespace}:{number}}}")}
    assert all(name.startswith(f"{{{namespace}:{number}}}:") for name in names)


@pytest.mark.parametrize("masters", range(1, 17))
@pytest.mark.parametrize("buckets", [16, 64, 1024])
@pytest.mark.parametrize("namespace", ["delaybridge", "x.y_z-1", "N" * 64])
def test_buckets_created_on_a_cluster_are_spread_evenly_over_its_masters(
    namespace: str, buckets: int, masters: int
) -> None:
    birth = keys.spread("0123456789abcdef", buckets, sharded=False)
    slots = [slot(keys.bucket_key(namespace, b, "due", birth)) for b in range(buckets)]
    of_master = Counter(found * masters // SLOTS for found in slots)
    share = buckets / masters
    assert max(of_master.values()) <= (ceil(share) + 1 if buckets <= 64 else 1.2 * share)
    assert max(of_master.values()) <= share + 1 or masters > 4 or buckets > 64


def test_the_tag_of_a_bucket_on_a_cluster_never_changes_between_versions() -> None:
    birth = keys.spread("0123456789abcdef", 16, sharded=True)
    assert birth == "0123456789abcdef:16s"
    assert keys.bucket_key("ns", 3, "due", birth) == "{ns:3.38}:due"
    assert keys.wake_channel("ns", 3, birth) == "+{ns:3.38}:wake"
    assert keys.wake_channel("ns", 3, birth.removesuffix("s")) == "{ns}:wake"
    assert keys.wake_channel("ns", 3, "0123456789abcdef") == "{ns}:wake"


def test_the_keys_of_the_namespace_are_in_one_slot_too() -> None:
    names = [of("ns") for of in OF_THE_NAMESPACE]
    assert {slot(name) for name in names} == {slot("ns")}


def test_the_keys_of_two_namespaces_or_buckets_are_never_the_same() -> None:
    names = {
        keys.bucket_key(namespace, number, name)
        for namespace in ("a", "a.1", "a-1")
        for number in (1, 11)
        for name in keys.BUCKET_KEYS
    }
    assert len(names) == 3 * 2 * len(keys.BUCKET_KEYS)


def test_every_key_of_every_verb_is_one_of_its_bucket() -> None:
    bucket = Bucket("ns", 7, "birth")
    made = [bucket.cancel(b"1234", "x"), *(bucket.page(s, limit=1) for s in LISTED)]
    assert all(key.startswith("{ns:7}:") for command in made for key in command.keys)
    used = {name for names in SCRIPT_KEYS.values() for name in names}
    known = {*keys.BUCKET_KEYS, "listed", "workers", "worker_info", "destinations", "allowances"}
    known |= {"series", "recurring", "recurring_due", "recurring_state", "controls", "unrecorded"}
    known |= {keys.LEAVING, "birth"}
    assert used <= known


@pytest.mark.parametrize(
    "namespace", ["", "{x}", "a b", "a:b", ".a", "-a", "é", "a" * 65, "a\n", "a*", "a/b", "\0", "٥"]
)
def test_a_namespace_that_could_not_be_part_of_a_key_is_refused(namespace: str) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        check_namespace(namespace)


@pytest.mark.parametrize("buckets", [0, -1, 3, 12, 3_000_000, 2**15])
def test_a_bucket_count_that_is_not_a_power_of_two_is_refused(buckets: int) -> None:
    with pytest.raises(ConfigError, match="buckets"):
        check_buckets(buckets)


def test_the_page_of_keys_names_every_key_of_a_bucket_and_no_other() -> None:
    assert tuple(ROW.findall(OF_BUCKET)) == (*keys.BUCKET_KEYS, keys.LEAVING)
    assert keys.bucket_key("ns", 3, "due") == "{ns:3}:due"
    assert "`{ns:b}:KEY`" in OF_BUCKET


def test_the_page_of_keys_names_every_key_of_the_namespace_and_no_other() -> None:
    names = [of("ns").removeprefix("{ns}:") for of in OF_THE_NAMESPACE]
    assert ROW.findall(OF_NAMESPACE) == names
