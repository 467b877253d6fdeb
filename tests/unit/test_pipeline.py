"""Commands on their way to their answers: what a call ends with when its time is up."""

from __future__ import annotations

import re
import ssl
from types import SimpleNamespace
from typing import cast

import pytest
import redis

from delaybridge.errors import DelayBridgeError, StoreMisnamed, StoreUnavailable
from delaybridge.store.protocol.verbs import plain
from delaybridge.store.redis.errors import NotAsked
from delaybridge.store.redis.pipeline import Pipeline
from delaybridge.store.redis.wire import Errors

COMMAND = plain("GET", "{ns:b.0}:due")


def answered(text: str, *, follows: bool) -> DelayBridgeError:
    """What a command ends with if this refusal comes when its time is up."""
    pipeline = Pipeline([COMMAND], timeout_s=0.0, follows=follows)
    portion = pipeline.portion(pipeline.next_round())
    [*pipeline.requests(portion)]
    connection = SimpleNamespace(_parser=SimpleNamespace(parse_error=Exception), host="127.0.0.1")
    pipeline.take_replies(portion, [Errors(connection)(text)])
    assert not pipeline.left
    return cast(DelayBridgeError, pipeline.answers[0])


@pytest.mark.parametrize("refusal", ["MOVED 7000 127.0.0.1:7001", "ASK 7000 127.0.0.1:7001"])
def test_a_slot_that_moves_until_time_is_up_is_unavailable_not_a_wrong_url(refusal: str) -> None:
    # then workers ask again and keep their leases
    error = answered(refusal, follows=True)
    assert type(error) is StoreUnavailable
    assert "slot" in str(error)
    assert "7001" not in str(error)
    # and only a URL of one server is wrong for a Cluster
    assert type(answered(refusal, follows=False)) is StoreMisnamed


def test_who_the_master_is_is_asked_until_time_is_up_without_longer_and_longer_pauses() -> None:
    pipeline = Pipeline([COMMAND], timeout_s=60.0, follows=True)
    for _ in range(20):
        pipeline.lost(pipeline.portion(pipeline.next_round()), NotAsked("not yet"))
        assert [*pipeline.left] == [0] and pipeline.pause_s <= 0.02
    pipeline.lost(pipeline.portion(pipeline.next_round()), ConnectionError("gone"))
    assert [*pipeline.left] == [0]  # and the first failure of a server is the first
    pipeline.take_replies(pipeline.portion(pipeline.next_round()), [b"x"])
    assert pipeline.result() == [b"x"]


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("self-signed certificate in certificate chain", "; name its CA: ?ssl_ca_certs=/PATH"),
        ("certificate has expired", "; renew it"),
        ("Hostname mismatch, certificate is not valid for 'h'.", "'; give the server by a name"),
    ],
)
def test_a_server_whose_certificate_is_not_trusted_is_not_tried_again(
    why: str, remedy: str
) -> None:
    pipeline = Pipeline([COMMAND], timeout_s=60.0, follows=True)
    lost, refused = redis.ConnectionError("Error 1"), ssl.SSLCertVerificationError(1, "failed")
    refused.verify_message = why
    lost.__cause__ = refused
    pipeline.lost(pipeline.portion(pipeline.next_round()), lost)
    assert not pipeline.left
    with pytest.raises(
        StoreUnavailable, match=re.escape(f"redis: its certificate is refused: {why.rstrip('.')}")
    ) as got:
        pipeline.result()
    assert remedy in str(got.value)
