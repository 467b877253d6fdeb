"""The kombu publisher: URLs and properties that it refuses, warns of, or does not show."""

from __future__ import annotations

from typing import Any

import pytest

from delaybridge.errors import ConfigError
from delaybridge.settings.urls import cautions, check_broker_url
from tests.rigs.accepting import refusal
from tests.rigs.broker import connect_to


class TestConfiguration:
    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("kombu+nonsense://h", "no transport 'nonsense'; use a scheme"),
            ("kombu+librabbitmq://h", "kombu cannot use the URL|confirms nothing"),
            ("kombu+redis://:s3cret@h:notaport/0", "kombu cannot use the URL"),
            ("kombu+redis://h?unknown=1", "kombu cannot use the URL"),
            ("kombu+amqps://h?transport.ssl=false", "would send clear text; leave it out"),
            ("kombu+amqps://h?transport.ssl=null", "would send clear text; leave it out"),
            ("kombu+rediss://h?transport.ssl=0", "would send clear text; leave it out"),
            ("kombu+amqp://h?transport.ssl=true", r"use kombu\+amqps://"),
        ],
    )
    def test_urls_that_kombu_refuses_are_refused(self, url: str, says: str) -> None:
        with pytest.raises(ConfigError, match=says) as caught:
            connect_to("kombu", url)
        assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize("url", ["kombu://h", "kombu+://h", "amqp+kombu://h", "kombu+x y://h"])
    def test_invalid_urls_are_refused(self, url: str) -> None:
        with pytest.raises(ValueError, match="kombu"):
            check_broker_url(url)

    def test_secrets_in_urls_are_not_shown(self) -> None:
        for url in ("kombu+sqs://KEY:s3cret@", "kombu+redis://h?transport.password=s3cret"):
            shown = f"{check_broker_url(url)}"
            assert "s3cret" not in shown
            assert "***" in shown

    def test_an_unencrypted_connection_to_another_host_is_warned_of(self) -> None:
        assert "use kombu+rediss://" in next(cautions("kombu+redis://10.0.0.1"))
        assert list(cautions("kombu+redis://127.0.0.1")) == []

    @pytest.mark.parametrize(
        ("properties", "code"),
        [
            ({"delivery_mode": 3}, "bad_property"),
            ({"expiration": 60}, "bad_expiration"),
            ({"priority": -1}, "bad_priority"),
            ({"own": object()}, "unsupported_header_type"),
            ({"own": "x" * 40_000}, "headers_too_large"),
        ],
    )
    def test_invalid_properties_are_refused(self, properties: dict[str, Any], code: str) -> None:
        assert refusal("kombu:q", properties=properties).code == code
