"""Settings from a file, variables and flags, in a working directory of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from delaybridge.errors import ConfigError
from delaybridge.settings.settings import Settings

CANARY = "S3CR3T-CANARY-77"
LISTS = {  # each setting that is a list, with two texts that it takes
    "dead.dead_letter": ("rabbitmq:/a", "kafka:a"),
    "ingest.exchanges": ("a.delay", "b.delay"),
    "ingest.topics": ("a.delay", "b.delay"),
    "ingest.destinations": ("rabbitmq:a", "kafka:*"),
    "ingest.trust": ("a=rabbitmq:b", "b=*"),
    "ingest.management": ("rabbitmq=http://h:1", "off"),
    "ingest.skip_offsets": ("a/0=1", "b/1=2"),
    "ingest.take_over": ("a@00", "b@11"),
    "front.nodes": ("rabbit-1:5672", "rabbit-2:5672"),
    "ingest.tenants": ("a.delay=acme", "*=beta"),
    "limits.tenants": ("acme=5/0", "beta=0/5"),
    "serve.allowed_hosts": ("h", "[::1]"),
    "serve.trusted_proxies": ("127.0.0.1", "fd00::/8"),
    "tenants": ("acme", "beta"),
}
BROKERS = {
    "DELAYBRIDGE_BROKERS__RABBITMQ": "amqp://h",
    "DELAYBRIDGE_BROKERS__KAFKA": "kafka://h",
    "DELAYBRIDGE_TENANTS": "acme,beta",
}


def load(
    text: str | None = None, *, env: dict[str, str] | None = None, flags: Any = None
) -> Settings:
    """Settings from a file with this text, these variables and these flags."""
    if text is not None:
        Path("settings.toml").write_text(text)
    return Settings.load(None if text is None else "settings.toml", flags, environ=env or {})


def refusal(text: str | None = None, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, **more)
    return str(caught.value).splitlines()
