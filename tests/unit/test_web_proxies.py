"""What trusted proxies say of a request, and what others say."""

from __future__ import annotations

from typing import Any

import pytest

from delaybridge.errors import ConfigError
from delaybridge.serve.http.proxies import Proxies
from delaybridge.settings.settings import Settings

TRUSTED = ("127.0.0.1", "10.0.0.0/8", "fd00::/8")


def told(client: str, *forwarded: str, prefix: str | None = None, root: str = "") -> Any:
    """The client and the root of a request."""
    headers = [(b"x-forwarded-for", text.encode("latin-1")) for text in forwarded]
    if prefix is not None:
        headers.append((b"x-forwarded-prefix", prefix.encode("latin-1")))
    scope = {"type": "http", "client": (client, 5), "headers": headers, "root_path": root}
    found = Proxies(TRUSTED).original(scope)
    return found["client"][0], found["root_path"]


@pytest.mark.parametrize(
    ("client", "forwarded", "address"),
    [
        pytest.param("10.1.1.1", ["8.8.8.8"], "8.8.8.8", id="one proxy"),
        pytest.param("10.1.1.1", [], "10.1.1.1", id="it says nothing"),
        pytest.param("9.9.9.9", ["8.8.8.8"], "9.9.9.9", id="no proxy of ours"),
        pytest.param("10.1.1.1", ["1.1.1.1, 8.8.8.8"], "8.8.8.8", id="the client wrote one"),
        pytest.param("10.1.1.1", ["127.0.0.1, 8.8.8.8, 10.0.0.9"], "8.8.8.8", id="two proxies"),
        pytest.param("10.1.1.1", ["1.1.1.1", "8.8.8.8"], "8.8.8.8", id="two headers"),
        pytest.param("10.1.1.1", ["8.8.8.8", "10.0.0.9"], "8.8.8.8", id="one header of each"),
        pytest.param("10.1.1.1", ["10.0.0.8, 10.0.0.9"], "10.0.0.8", id="within"),
        pytest.param("10.1.1.1", ["8.8.8.8, odd, 10.0.0.9"], "10.0.0.9", id="no address"),
        pytest.param("10.1.1.1", ["8.8.8.8, "], "10.1.1.1", id="empty"),
        pytest.param("10.1.1.1", ["fe80::1%<b>"], "10.1.1.1", id="a zone"),
        pytest.param("10.1.1.1", ["8.8.8.8:4711"], "8.8.8.8", id="a port"),
        pytest.param("10.1.1.1", ["[2001:db8::1]:80"], "2001:db8::1", id="IPv6, a port"),
        pytest.param("fd00::1", ["2001:db8::1"], "2001:db8::1", id="IPv6"),
        pytest.param("::ffff:10.1.1.1", ["::ffff:8.8.8.8"], "8.8.8.8", id="mapped"),
        pytest.param("", ["8.8.8.8"], "", id="a socket without an address"),
    ],
)
def test_only_what_trusted_proxies_wrote_says_who_asks(
    client: str, forwarded: list[str], address: str
) -> None:
    assert told(client, *forwarded)[0] == address


@pytest.mark.parametrize(
    ("client", "prefix", "root"),
    [
        ("10.1.1.1", "/delay", "/delay/app"),
        ("10.1.1.1", "/a/b.c/", "/a/b.c/app"),
        ("10.1.1.1", "/", "/app"),
        ("10.1.1.1", "//evil.example", "/app"),
        ("10.1.1.1", "/\\evil", "/app"),
        ("10.1.1.1", "/a\n", "/app"),
        ("10.1.1.1", "/a/../b", "/app"),
        ("10.1.1.1", "/" + "a" * 255, "/app"),
        ("9.9.9.9", "/delay", "/app"),
    ],
)
def test_only_a_trusted_proxy_takes_something_off_the_path(
    client: str, prefix: str, root: str
) -> None:
    assert told(client, prefix=prefix, root="/app")[1] == root


@pytest.mark.parametrize("text", ["proxy.example", "10.0.0.1/8", "*", "10.0.0.0/40"])
def test_a_proxy_is_an_address_or_a_network(text: str) -> None:
    with pytest.raises(ConfigError, match=r"serve\.trusted_proxies: .*addresses or networks"):
        Settings.load(overrides={"serve": {"trusted_proxies": [text]}})
