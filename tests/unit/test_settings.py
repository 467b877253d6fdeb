"""Settings: their defaults, and the sources of values."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from delaybridge import publish
from delaybridge.errors import ConfigError
from delaybridge.message import Limits
from delaybridge.settings import urls
from delaybridge.settings.names import variable
from delaybridge.settings.settings import Settings, descriptions
from delaybridge.settings.sources import CONFIG_VARIABLE, MAX_FILE_BYTES
from tests.rigs.settings_file import BROKERS, CANARY, LISTS, load
from tools.sample import sample

pytestmark = pytest.mark.usefixtures("elsewhere")


ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "config/delaybridge.toml"


def test_the_sample_file_holds_the_defaults() -> None:
    assert Settings.load(SAMPLE, environ={}).model_dump() == Settings().model_dump()


def test_the_sample_file_is_generated_from_the_descriptions() -> None:
    assert SAMPLE.read_text() == sample()


def test_the_sample_file_names_every_setting() -> None:
    listed = Settings.load(SAMPLE, environ={}).sources()
    assert {path for path, source in listed.items() if source == "default"} == set()


def test_every_setting_is_described() -> None:
    assert [path for path, text in descriptions().items() if not text] == []


def test_defaults_agree_with_those_of_the_configured_parts() -> None:
    settings = Settings()
    options = publish.PublishOptions()
    assert settings.limits.as_limits() == Limits()
    assert settings.publish.confirm_timeout_s == options.confirm_timeout_s
    assert settings.publish.heartbeat_s == options.heartbeat_s
    assert settings.publish.blocked_connection_timeout_s == options.blocked_connection_timeout_s
    assert settings.publish.linger_ms == options.linger_ms


def test_every_url_scheme_has_the_kind_of_its_publisher() -> None:
    for scheme, kind in urls.KINDS.items():
        assert publish.kind_of(f"{scheme}://host") == kind
    assert set(urls.DEFAULT_KINDS) == set(urls.KINDS.values())


def test_settings_are_frozen_and_can_be_pickled() -> None:
    settings = load(flags={"redis": {"url": f"redis://:{CANARY}@host"}})
    with pytest.raises(ValueError, match="frozen"):
        settings.lease.ttl_ms = 1
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy.sources() == settings.sources()
    assert copy.redis.url.partition("@")[0] == f"redis://:{CANARY}"


# order and sources


def test_flags_win_over_environment_over_file_over_defaults() -> None:
    settings = load(
        "[lease]\nttl_ms = 20001\nrenew_ms = 3001\n[scan]\nbatch_messages = 7\n",
        env={
            "DELAYBRIDGE_LEASE__TTL_MS": "20002",
            "DELAYBRIDGE_LEASE__RENEW_MS": "3002",
            "DELAYBRIDGE_REDIS_URL": "redis://from-env",
        },
        flags={"lease": {"ttl_ms": 20003}},
    )
    assert (settings.lease.ttl_ms, settings.lease.renew_ms) == (20003, 3002)
    assert settings.scan.batch_messages == 7
    assert settings.redis.url == "redis://from-env"
    sources = settings.sources()
    assert sources["lease.ttl_ms"] == "override"
    assert sources["lease.renew_ms"] == "DELAYBRIDGE_LEASE__RENEW_MS"
    assert sources["scan.batch_messages"] == "settings.toml"
    assert sources["redis.url"] == "DELAYBRIDGE_REDIS_URL"
    assert sources["namespace"] == "default"


def test_variables_keep_their_documented_spelling() -> None:
    settings = load(
        env={
            "DELAYBRIDGE_REDIS_URL": "rediss://r:1",
            "DELAYBRIDGE_NAMESPACE": "ns",
            "DELAYBRIDGE_BROKERS__RABBITMQ": "amqp://b",
            "DELAYBRIDGE_BROKERS__KAFKA": "kafka://h1:9092,h2:9092",
        }
    )
    assert settings.redis.url == "rediss://r:1"
    assert settings.namespace == "ns"
    assert settings.brokers == {"rabbitmq": "amqp://b", "kafka": "kafka://h1:9092,h2:9092"}
    assert settings.sources()["brokers.rabbitmq"] == "DELAYBRIDGE_BROKERS__RABBITMQ"


def test_brokers_of_file_and_environment_are_merged_by_name() -> None:
    settings = load(
        '[brokers]\neu = "amqp://one"\nus = "amqp://two"\n',
        env={"DELAYBRIDGE_BROKERS__EU": "amqp://three"},
    )
    assert settings.brokers == {"eu": "amqp://three", "us": "amqp://two"}


def _as_variable(path: tuple[str, ...], value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str.__str__(value) if path[-1] == "url" else f"{value}"


@pytest.mark.parametrize("text", ['["{0}", "{1}"]', ' [ "{0}","{1}"]', "{0},{1}", " {0} , {1},"])
def test_a_list_in_a_variable_is_written_with_commas_or_as_json(text: str) -> None:
    for path, (one, two) in LISTS.items():
        name = variable(tuple(path.split(".")))
        settings = load(env=BROKERS | {name: text.format(one, two)})
        assert dict(settings.items())[path] == (one, two)


def test_the_lists_of_these_tests_are_all_there_are() -> None:
    assert {path for path, value in Settings().items() if isinstance(value, tuple)} == {*LISTS}


def test_every_setting_has_a_variable() -> None:
    for name, value in Settings().items():
        path = tuple(name.split("."))
        text = _as_variable(path, value)
        settings = load(env={variable(path): text})
        # An empty variable counts as unset: an empty list is the default anyway.
        assert settings.sources()[name] == (variable(path) if text else "default")
        assert settings.model_dump() == Settings().model_dump()


def test_the_file_is_named_by_argument_or_variable_or_is_in_the_working_directory() -> None:
    Path("a.toml").write_text('namespace = "a"\n')
    Path("delaybridge.toml").write_text('namespace = "here"\n')
    assert Settings.load(environ={}).namespace == "here"
    assert Settings.load(environ={CONFIG_VARIABLE: "a.toml"}).namespace == "a"
    assert (
        Settings.load("delaybridge.toml", environ={CONFIG_VARIABLE: "a.toml"}).namespace == "here"
    )
    assert Settings.load(environ={CONFIG_VARIABLE: ""}).namespace == "here"


@pytest.mark.parametrize(
    "name",
    [
        *("DELAYBRIDGE_TEST_REDIS_URL", "DELAYBRIDGE_CACHE", "DELAYBRIDGE_FAILPOINTS"),
        *("DELAYBRIDGE_SERVICE_HOST", "DELAYBRIDGE_SERVICE_PORT_HTTP", "DELAYBRIDGE_PORT"),
        *("DELAYBRIDGE_PORT_8645_TCP_ADDR", "DELAYBRIDGE_REDIS_SERVICE_HOST"),
        *("DELAYBRIDGE_REDIS_PORT_6379_TCP", "OTHER_DELAYBRIDGE_X"),
    ],
)
def test_variables_that_are_not_settings_are_ignored(name: str) -> None:
    assert load(env={name: "tcp://10.0.0.1:80"}).model_dump() == Settings().model_dump()


def test_an_empty_variable_counts_as_unset() -> None:
    env = {"DELAYBRIDGE_NAMESPACE": "", "DELAYBRIDGE_NONSENSE": ""}
    assert load(env=env).model_dump() == Settings().model_dump()


# files


@pytest.mark.parametrize("text", ["", "\ufeff", "\ufeffbuckets = 8\n", "# nothing\n"])
def test_an_empty_file_and_a_byte_order_mark_are_accepted(text: str) -> None:
    assert load(text).buckets == (8 if "8" in text else 16)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"x = \n", "is not TOML: Invalid value (at line 1"),
        (b"[redis]\n[redis]\n", "is not TOML: Cannot declare"),
        (b"buckets = 1\nbuckets = 1\n", "(at line 2"),
        (b"namespace = '\xff'\n", "is not UTF-8 (at line 1)"),
        (b"#" * (MAX_FILE_BYTES + 1), "is larger than 1 MiB"),
        (b"x = " + b"[" * 20_000, "settings.toml: is "),
        (b"buckets = " + b"9" * 5000, "is not TOML: "),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(content: bytes, says: str) -> None:
    Path("settings.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Settings.load("settings.toml", environ={})
    assert str(caught.value).startswith("settings.toml: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_directory_are_refused() -> None:
    for asked, says in (("none.toml", "there is no such file"), (".", "is a directory")):
        with pytest.raises(ConfigError, match=says):
            Settings.load(asked, environ={})
    with pytest.raises(ConfigError, match=r"none\.toml: there is no"):
        Settings.load(environ={CONFIG_VARIABLE: "none.toml"})


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_read_permission_is_refused() -> None:
    Path("closed.toml").write_text("")
    Path("closed.toml").chmod(0)
    with pytest.raises(ConfigError, match="Permission denied"):
        Settings.load("closed.toml", environ={})
