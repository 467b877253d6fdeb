"""Settings: their defaults, the sources of values, and refusals that help."""

from __future__ import annotations

import logging
import os
import pickle
import runpy
from pathlib import Path
from typing import Any

import pytest

from delaybridge import publish
from delaybridge.errors import ConfigError
from delaybridge.message import Limits
from delaybridge.settings import password_file, urls
from delaybridge.settings.names import variable
from delaybridge.settings.password_file import PasswordFile
from delaybridge.settings.relations import RELATIONS
from delaybridge.settings.settings import Settings, descriptions
from delaybridge.settings.sources import CONFIG_VARIABLE, MAX_FILE_BYTES
from delaybridge.settings.urls import (
    SecretUrl,
    check_broker_url,
    check_redis_url,
    redact,
    redact_text,
)

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "config/delaybridge.toml"
CANARY = "S3CR3T-CANARY-77"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a settings file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(
    text: str | None = None, *, env: dict[str, str] | None = None, flags: Any = None
) -> Settings:
    """Settings from a file with this text, these variables and these flags."""
    if text is not None:
        Path("settings.toml").write_text(text)
    return Settings.load(None if text is None else "settings.toml", flags, environ=env or {})


def refusal(text: str | None = None, **more: Any) -> list[str]:
    """The lines of the ConfigError."""
    with pytest.raises(ConfigError) as caught:
        load(text, **more)
    return str(caught.value).splitlines()


# defaults and the sample file


def test_the_sample_file_holds_the_defaults() -> None:
    assert Settings.load(SAMPLE, environ={}).model_dump() == Settings().model_dump()


def test_the_sample_file_is_generated_from_the_descriptions() -> None:
    sample = runpy.run_path(str(ROOT / "docs/sample.py"))["sample"]
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
        "DELAYBRIDGE_TEST_REDIS_URL",
        "DELAYBRIDGE_CACHE",
        "DELAYBRIDGE_FAILPOINTS",
        "DELAYBRIDGE_SERVICE_HOST",
        "DELAYBRIDGE_SERVICE_PORT_HTTP",
        "DELAYBRIDGE_PORT",
        "DELAYBRIDGE_PORT_8645_TCP_ADDR",
        "DELAYBRIDGE_REDIS_SERVICE_HOST",
        "DELAYBRIDGE_REDIS_PORT_6379_TCP",
        "OTHER_DELAYBRIDGE_X",
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


# refusals


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bukets = 8", "bukets: unknown; did you mean buckets?"),
        ("[scan]\nttl_ms = 1", "scan.ttl_ms: unknown; did you mean lease.ttl_ms?"),
        ("[scna]\nx = 1", "scna: unknown; "),
        ("redis = 'redis://x'", "redis: is a section; write [redis] and its keys below"),
        ("redis_url = 'redis://x'", "redis_url: unknown; did you mean redis.url?"),
        ("[namespace]\nx = 1", "namespace: got {'x': 1}; allowed: 1 to 64 letters"),
        ("[brokers]\neu.west = 'amqp://x'", "brokers.eu: got a table or a list; allowed: amqp"),
        ("[brokers]\n'a:b' = 'amqp://x'", "brokers: got the name 'a:b'; allowed: 1 to 64"),
        ("[brokers]\n'a/b' = 'amqp://x'", "brokers: got the name 'a/b'; allowed: 1 to 64"),
        ("[brokers]\n'' = 'amqp://x'", "brokers"),
        ("[brokers]\nkafka = 'amqp://x'", "allowed: under the name kafka a broker of that kind"),
        ("[brokers]\nx = 'ftp://x'", "brokers.x: got 'ftp://x'; allowed: a URL whose scheme"),
        ("namespace = ''", "namespace: got ''; allowed: 1 to 64 letters"),
        ("namespace = '{x}'", "namespace: got '{x}'"),
        ("namespace = 'a b'", "namespace: got 'a b'"),
        (f"namespace = '{'x' * 200}'", "namespace: got 'xxx"),
        ("buckets = 0", "buckets: got 0; allowed: a power of two from 1 to 16384"),
        ("buckets = 3000000", "buckets: got 3000000"),
        ("buckets = 12", "buckets: got 12"),
        ("buckets = true", "buckets: got True"),
        ("buckets = 16.0", "buckets: got 16.0"),
        ("buckets = '1_6'", "buckets: got '1_6'"),
        ("[lease]\nrenew_ms = 0", "lease.renew_ms: got 0; allowed: a whole number from 10"),
        ("[scan]\nbatch_messages = 0", "scan.batch_messages: got 0"),
        ("[scan]\nbatch_messages = 1000000", "scan.batch_messages: got 1000000"),
        ("[scan]\nprocesses = 0", "scan.processes: got 0"),
        ("[scan]\nprocesses = 1000000000", "scan.processes: got 1000000000"),
        ("[retry]\nmax_attempts = 0", "retry.max_attempts: got 0"),
        ("[retry]\nmax_attempts = -1", "retry.max_attempts: got -1"),
        ("[retry]\nmax_attempts = 1000000000", "retry.max_attempts: got 1000000000"),
        ("[retry]\nfactor = 1", "retry.factor: got 1; allowed: a number above 1 to 100"),
        ("[retry]\nfactor = nan", "retry.factor: got nan"),
        ("[retry]\njitter = 1.1", "retry.jitter: got 1.1; allowed: a number from 0 to 1"),
        ("[publish]\nwindow_messages = 0", "publish.window_messages: got 0"),
        ("[publish]\nwindow_messages = 1000000", "publish.window_messages: got 1000000"),
        ("[redis]\ntimeout_s = inf", "redis.timeout_s: got inf"),
        ("[ingest]\nprefetch = 0", "ingest.prefetch: got 0"),
        ("[limits]\ndelay = '5x'", "limits.delay: got '5x'; allowed: a duration with a unit"),
        ("[limits]\ndelay = '-5s'", "limits.delay: got '-5s'"),
        ("[limits]\ndelay = '∞'", "limits.delay: got '∞'"),
        ("[limits]\ndelay = 5", "limits.delay: got 5"),
        ("[limits]\ndelay = '400000d'", "limits.delay: got '400000d'"),
        ("[limits]\nid_bytes = 256", "limits.id_bytes: got 256; allowed: a whole number from 1"),
    ],
)
def test_a_bad_value_in_the_file_is_refused_with_its_bounds(text: str, says: str) -> None:
    (line,) = refusal(text)
    assert line.startswith("settings.toml: ")
    assert says in line


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DELAYBRIDGE_LEASE__TTL_MS", "abc", "lease.ttl_ms: got 'abc'; allowed: a whole number"),
        ("DELAYBRIDGE_LEASE__TTL_MS", " 10000", "lease.ttl_ms: got ' 10000'"),
        ("DELAYBRIDGE_LEASE__TTL_MS", "10_000", "lease.ttl_ms: got '10_000'"),
        ("DELAYBRIDGE_LEASE__TTL_MS", "1e4", "lease.ttl_ms: got '1e4'"),
        ("DELAYBRIDGE_LEASE__TTL_MS", "١", "lease.ttl_ms: got '١'"),
        ("DELAYBRIDGE_REDIS_TIMEOUT", "1", "unknown"),
        ("DELAYBRIDGE_REDIS_ULR", "1", "unknown; did you mean DELAYBRIDGE_REDIS_URL"),
        ("DELAYBRIDGE_REDIS__URL__X", "1", "unknown"),
        ("DELAYBRIDGE_", "1", "unknown"),
        ("DELAYBRIDGE_BROKERS", "amqp://x", "unknown; a broker is DELAYBRIDGE_BROKERS__NAME=URL"),
        ("DELAYBRIDGE_BROKERS__", "amqp://x", "unknown; a broker is"),
        ("DELAYBRIDGE_BROKER_RABBITMQ", "amqp://x", "unknown; a broker is"),
        ("DELAYBRIDGE_REDIS_URL", "redis://\udcff", "redis.url: got"),
    ],
)
def test_a_bad_variable_is_refused_by_its_name(name: str, value: str, says: str) -> None:
    (line,) = refusal(env={name: value})
    assert line.startswith(f"{name}: ")
    assert says in line
    line.encode()


def test_a_plain_value_for_a_section_is_refused_even_where_the_environment_sets_a_key() -> None:
    for text in ("redis = 5", "brokers = 5", "lease = 'x'"):
        name = text.partition(" ")[0]
        env = {
            "DELAYBRIDGE_REDIS_URL": "redis://h",
            "DELAYBRIDGE_BROKERS__A": "amqp://h",
            "DELAYBRIDGE_LEASE__TTL_MS": "20000",
        }
        (line,) = refusal(text, env=env)
        says = f"{name}: is a section; write [{name}] and its keys below"
        assert line == f"settings.toml: {says}"


def test_a_broker_named_as_another_kind_is_refused_together_with_other_faults() -> None:
    lines = refusal("buckets = 12\n[brokers]\nkafka = 'amqp://x'\n'a:b' = 'amqp://x'\n")
    assert len(lines) == 3
    assert all(line.startswith("settings.toml: ") for line in lines)
    assert "the name kafka" in lines[0]
    overridden = {"DELAYBRIDGE_BROKERS__KAFKA": "kafka://h:1"}
    assert load("[brokers]\nkafka = 'amqp://x'", env=overridden).brokers == {"kafka": "kafka://h:1"}


def test_two_variables_for_one_setting_must_agree() -> None:
    same = {"DELAYBRIDGE_REDIS_URL": "redis://a", "DELAYBRIDGE_REDIS__URL": "redis://a"}
    assert load(env=same).redis.url == "redis://a"
    (line,) = refusal(env={**same, "DELAYBRIDGE_REDIS__URL": "redis://b"})
    assert "differs from DELAYBRIDGE_REDIS_URL" in line


def test_all_faults_are_reported_at_once() -> None:
    lines = refusal(
        "bukets = 1\n[lease]\nttl_ms = 'x'\n[brokers]\n'a:b' = 'amqp://x'\nc = 'ftp://x'\n",
        env={"DELAYBRIDGE_NONSENSE": "1", "DELAYBRIDGE_SCAN__PROCESSES": "0"},
        flags={"namespace": "a b"},
    )
    assert [line.partition(": ")[0] for line in lines].count("settings.toml") == 4
    assert any(line.startswith("DELAYBRIDGE_NONSENSE: ") for line in lines)
    assert any(line.startswith("DELAYBRIDGE_SCAN__PROCESSES: scan.processes") for line in lines)
    assert any(line.startswith("--namespace: namespace") for line in lines)
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[lease]\nrenew_ms = 5000", ["lease.renew_ms (5000)", "(5.0)", "lease.ttl_ms (10000)"]),
        ("[redis]\ntimeout_s = 6", ["redis.timeout_s (6.0)", "below lease.ttl_ms (10000)"]),
        ("[scan]\nclaim_ahead_ms = 4", ["scan.fire_lead_ms (5)", "scan.claim_ahead_ms (4)"]),
        ("[publish]\nheartbeat_s = 21", ["publish.heartbeat_s (21)", "(20.0)"]),
        ("[publish]\nblocked_connection_timeout_s = 21", ["(21.0)", "(20.0)"]),
        ("[scan]\nbatch_bytes = 200000", ["(262144)", "(32768)", "scan.batch_bytes (200000)"]),
        ("[scan]\nwheel_bytes = 200000", ["scan.wheel_bytes (200000)"]),
        ("[publish]\nwindow_bytes = 200000", ["publish.window_bytes (200000)"]),
        ("[publish]\nwindow_messages = 100001", ["(100001)", "scan.wheel_messages (100000)"]),
        ("[retry]\nmax_ms = 999", ["retry.base_ms (1000)", "retry.max_ms (999)"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_both_numbers(
    text: str, names: list[str]
) -> None:
    (line,) = refusal(text)
    assert line.startswith("settings.toml: ")
    for name in names:
        assert name in line


def test_every_relation_compares_settings_that_exist() -> None:
    for left, _, right in RELATIONS:
        assert {*left, right} <= descriptions().keys()


# URLs


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h:1/15",
        "rediss://u:p%40w@h:6379/0?ssl_ca_certs=/ca.pem",
        "redis://[::1]:6379/0",
        "unix:///run/redis.sock?db=1",
    ],
)
def test_redis_urls_accepted(url: str) -> None:
    assert check_redis_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        *("", "h:6379", "http://h", "redis:h", "redis://", "redis:///0", "redis://:6379/0"),
        *("redis://h:0", "redis://h:70000", "redis://h:x", "redis://h:99999999999"),
        *("redis://h/x", "redis://h/0/1", "redis://h/-1", "redis://h#0", "redis://h /0"),
        *("redis://h?socket_timeout=9", "redis://h?ssl_cert_reqs=none", "unix://h/x", "unix://"),
        *("rediss://h?ssl_certfile=/c", "rediss://h?ssl_keyfile=/k", "redis://a,b", 5, None, True),
        *("redis://h/0\x1b[31m", "redis+sentinel://h:26379", "redis+cluster://h:7000/1"),
    ],
)
def test_redis_urls_refused(url: object) -> None:
    with pytest.raises(ValueError, match=r"redis://|after '\?'|together"):
        check_redis_url(url)


@pytest.mark.parametrize(
    ("section", "url"),
    [
        ("redis", "redis://:a@{}@h:1/0"),
        ("redis", "redis://:{}/a@h:1/0"),
        ("redis", "redis://:a?{}@h:1/0"),
        ("brokers", "amqp://u:{}/a@h/"),
        ("brokers", "kafka://u:a@{}@h:1"),
    ],
)
def test_an_unescaped_password_gives_a_hint_and_is_not_shown(section: str, url: str) -> None:
    (line,) = refusal(flags={section: {"url": url.format(CANARY)}})
    assert "write @ as %40" in line
    assert CANARY not in line


@pytest.mark.parametrize(
    "url",
    [
        "amqp://guest:guest@h:5672/%2F",
        "amqps://h",
        "amqp://h/vhost?x=1",
        "kafka://a:9092,b:9093",
        "kafkas://u:p@[::1]:9092",
        "memory://",
        "memory:///x",
    ],
)
def test_broker_urls_accepted(url: str) -> None:
    assert check_broker_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        *("", "amqp:", "h:5672", "amqp://", "amqp:///v", "amqp://h/a/b", "amqp://h//", "ftp://h"),
        *("amqp://h:0", "amqp://h:70000", "amqp://a,b", "kafka://", "kafka://a:1,", "kafka://,a:1"),
        *("kafka://a:1/topic", "kafka://a:0", "kafka://a:1,b:x", "amqp://h#x", None, 1),
    ],
)
def test_broker_urls_refused(url: object) -> None:
    with pytest.raises(ValueError, match=r"amqp|kafka"):
        check_broker_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:{}@h:1/0",
        "redis://{}@h",
        "amqp://user:{}@h/v",
        "amqp://user:a@{}@h/v",
        "amqp://user:a/{}@h/v",
        "amqp://user:{}?b@h/v",
        "amqp://user:a#{}@h/v",
        "user:{}@h",
        "redis:{}@h",
        "redis:/:{}@h",
        "user:/{}@h",
        "kafka://h:1?sasl_password={}&x=1",
        "kafka://h:1?x=1;sasl.password={}",
        "kafka://h:1?pass%77ord={}",
        "rediss://h?ssl_password={}#x",
        "unix:///s?password={}",
        'kombu+sentinel://h?transport.sentinel_kwargs={{"password":"{}"}}',
        "kombu+sqs://?transport.predefined_queues=%7B%22q%22%3A%7B%22access_key_id%22%3A%22{}%22%7D%7D",
        "amqps://h/?ssl_options={{'certfile':'/c','password':'{}'}}",
        'kombu+amqps://h?transport.ssl={{"keyfile_password":"{}"}}',
        "kombu+redis://h?transport.sentinels=[%22redis://:{}%40h%22]",
        "kombu+redis://h?transport.global_keyprefix=x&transport.proxy=http://u:{}%40proxy",
    ],
)
def test_redact_hides_every_secret(url: str) -> None:
    url = url.format(CANARY)
    secret = SecretUrl(url)
    for shown in (redact(url), f"{secret}", str(secret), repr(secret), f"{secret:>40}"):
        assert CANARY not in shown
        assert "***" in shown
    assert CANARY not in redact_text(f"cannot reach {secret}!")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("amqp://guest:guest@h/%2F", "amqp://guest:***@h/%2F"),
        ("redis://:pw@h", "redis://:***@h"),
        ("kafka://h:1?x=1&ssl_keyfile=/k", "kafka://h:1?x=1&ssl_keyfile=/k"),
        ("", ""),
    ],
)
def test_redact_keeps_the_parts_that_are_not_secret(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize(
    "toml",
    [
        "[ingest]\nmanagement = ['https://u:{}@h']",
        "[ingest]\nexchanges = [['amqp://u:{}@h']]",
        "[brokers]\nrabbitmq = {{password = '{}'}}",
        "[brokers.rabbitmq]\nurl = '{}'",
        "[redis]\nurl = ['{}']",
    ],
)
def test_no_secret_of_a_list_or_table_in_a_refusal(toml: str) -> None:
    (line,) = refusal(toml.format(CANARY))
    assert "got" in line
    assert CANARY not in line


def test_no_secret_in_any_output_of_settings() -> None:
    settings = load(
        f'[redis]\nurl = "redis://:{CANARY}@h"\n',
        env={"DELAYBRIDGE_BROKERS__RABBITMQ": f"amqp://u:{CANARY}@h"},
    )
    shown = [repr(settings), str(settings), f"{settings.brokers}", *settings.cautions()]
    shown += [f"{value}" for _, value in settings.items()]
    assert not [text for text in shown if CANARY in text]


def test_no_secret_in_the_log_of_pydantic_settings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYDANTIC_SETTINGS_DEBUG", "1")
    caplog.set_level(logging.DEBUG)
    brokers = {"rabbitmq": f"amqp://u:{CANARY}@h"}
    load(
        f"[redis]\nurl = 'redis://:{CANARY}@h'",
        env={"DELAYBRIDGE_BROKERS__EU": brokers["rabbitmq"]},
        flags={"brokers": brokers},
    )
    Settings(brokers=brokers)  # type: ignore[arg-type]
    assert "values hidden" in caplog.text
    assert CANARY not in caplog.text


# cautions


def test_risky_settings_give_warnings() -> None:
    Path("settings.toml").touch(mode=0o644)
    settings = load(
        '[redis]\nurl = "redis://:pw@10.0.0.1"\n'
        '[brokers]\na = "amqps://h:5672"\nb = "kafka://h:9092"\nc = "amqp://127.0.0.2"\n'
        "[publish]\nheartbeat_s = 4\n"
    )
    found = settings.cautions()
    assert [line.partition(":")[0] for line in found] == [
        *("redis.url", "brokers.a", "brokers.b", "publish.heartbeat_s", "settings.toml"),
    ]
    Path("settings.toml").chmod(0o600)
    assert len(settings.cautions()) == len(found) - 1
    assert Settings().cautions() == []
    open_door = load(flags={"redis": {"url": "rediss://h?ssl_cert_reqs=none"}})
    assert "ssl_cert_reqs=none" in open_door.cautions()[0]


@pytest.mark.parametrize(
    ("section", "url"),
    [
        ("redis", "rediss://h?ssl_cert_reqs=CERT_NONE"),
        ("redis", "rediss://h?ssl_cert_reqs=optional"),
        ("redis", "rediss://h?ssl_check_hostname=false"),
        ("brokers", "rediss://h?ssl_check_hostname=no"),
        ("brokers", "kombu+rediss://h?ssl_cert_reqs=CERT_NONE"),
        ("brokers", "kombu+rediss://h?ssl_cert_reqs=typo"),
        ("brokers", "kombu+rediss://h?ssl_check_hostname=False"),
        ("brokers", 'kombu+rediss://h?transport.ssl={"ssl_check_hostname":false}'),
        ("brokers", 'kombu+amqps://h?transport.ssl={"cert_reqs":0}'),
        ("brokers", 'kombu+amqps://h?transport.ssl={"cert_reqs":null}'),
        ("brokers", 'kombu+amqps://h?transport.ssl={"context":{"check_hostname":false}}'),
        ("brokers", "amqps://h/?ssl_options={'protocol':2}"),
        ("brokers", "kafkas://h?ssl.endpoint.identification.algorithm=none"),
        ("brokers", "kombu+pyamqp://h"),
    ],
)
def test_every_option_that_weakens_tls_gives_a_warning(section: str, url: str) -> None:
    name = "url" if section == "redis" else "eu"
    (found,) = load(flags={section: {name: url}}).cautions()
    assert found.startswith(f"{section}.{name}: ")


@pytest.mark.parametrize(
    "url",
    [
        "rediss://h?ssl_cert_reqs=required&ssl_check_hostname=true&ssl_ca_certs=/ca",
        "kombu+rediss://h?ssl_cert_reqs=CERT_REQUIRED",
        'kombu+amqps://h?transport.ssl={"ca_certs":"/ca","cert_reqs":2}',
        "amqps://h/?ssl_options={'ca_certs':'/ca'}",
        "kafkas://h?ssl.endpoint.identification.algorithm=https",
    ],
)
def test_tls_with_its_checks_needs_no_warning(url: str) -> None:
    assert load(flags={"brokers": {"eu": url}}).cautions() == []


# passwords in files


def test_a_password_file_is_part_of_the_url_however_it_is_given() -> None:
    for given in (
        {"url": "redis://bridge@h:1/2", "password_file": "/run/s p"},
        {"url": "redis://bridge@h:1/2?password_file=/run/s%20p"},
        {"url": "redis://bridge@h:1/2?password_file=/run/s%20p", "password_file": "/run/s p"},
    ):
        url = load(flags={"redis": given}).redis.url
        assert f"{url}" == "redis://***@h:1/2?password_file=/run/s%20p"
        assert password_file.split(url) == ("redis://bridge@h:1/2", PasswordFile("/run/s p"))


@pytest.mark.parametrize(
    "given",
    [
        {"url": "redis://:a@h", "password_file": "/p"},
        {"url": "redis://h?password_file=/q", "password_file": "/p"},
        {"url": "redis://:a@h?password_file=/q"},
    ],
)
def test_a_second_password_is_refused(given: dict[str, str]) -> None:
    (line,) = refusal(flags={"redis": given})
    assert "password_file" in line
    assert ":a@" not in line


def test_a_password_file_is_utf_8_and_loses_one_line_end(tmp_path: Path) -> None:
    file = PasswordFile(str(tmp_path / "p"))
    for text, password in (("a", "a"), ("a b\n", "a b"), ("a\r\n", "a"), ("\xe9\n\n", "\xe9\n")):
        Path(file.path).write_text(text, newline="")
        assert file.read() == password
    for data in (b"", b"\n", b"\xff"):
        Path(file.path).write_bytes(data)
        with pytest.raises(ValueError, match="password_file: /.*p"):
            file.read()
    Path(file.path).unlink()
    with pytest.raises(ValueError, match="No such file"):
        file.read()


# routes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("exchanges", "a.delay=b.delay,b.delay=a.delay"),
        ("exchanges", "xx:orders.delay"),
        ("exchanges", "a.delay b.delay"),
        ("exchanges", "orders"),
        ("exchanges", "orders.delay;type=foo"),
        ("exchanges", '["a.delay"]'),
        ("exchanges", "x" * 300 + ".delay"),
        ("topics", "\udcff.delay"),
        ("topics", '["a.delay"]'),
        ("topics", "orders"),
    ],
)
def test_a_route_that_ingest_would_refuse_is_refused_when_settings_are_loaded(
    field: str, value: str
) -> None:
    for brokers in ({}, {"rabbitmq": "amqp://h", "log": "kafka://h"}):
        with pytest.raises(ConfigError) as refused:
            Settings.load(
                None,
                {"brokers": brokers},
                environ={f"DELAYBRIDGE_INGEST__{field.upper()}": value},
            )
        assert f"DELAYBRIDGE_INGEST__{field.upper()}: ingest.{field}: " in str(refused.value)


@pytest.mark.parametrize(
    "field", ["exchanges", "topics", "destinations", "trust", "skip_offsets", "take_over"]
)
def test_a_text_that_is_not_utf_8_is_refused(field: str) -> None:
    name = f"DELAYBRIDGE_INGEST__{field.upper()}"
    with pytest.raises(ConfigError, match=f"{name}: ingest.{field}: .*printable"):
        Settings.load(None, {}, environ={name: "\udcff/0=1,a@00"})


def test_a_route_whose_broker_is_configured_elsewhere_is_accepted() -> None:
    Settings.load(None, {"ingest": {"exchanges": ["orders.delay"]}}, environ={})
    kafka = {"brokers": {"kafka": "kafka://h"}, "ingest": {"exchanges": ["orders.delay"]}}
    Settings.load(None, kafka, environ={})


@pytest.mark.parametrize(
    ("letters", "what"),
    [
        ("kafka:dead", "no broker is named 'kafka'"),
        ("rabbitmq:dead", "has no slash"),
        ("rabbitmq:/a,rabbitmq:/b", "broker 'rabbitmq' has one already"),
    ],
)
def test_a_dead_letter_destination_must_name_a_configured_broker(letters: str, what: str) -> None:
    overrides = {"brokers": {"rabbitmq": "amqp://h"}, "dead": {"dead_letter": letters}}
    with pytest.raises(ConfigError, match=what):
        Settings.load(None, overrides, environ={})
    overrides["dead"] = {"dead_letter": "rabbitmq:/dead"}
    assert Settings.load(None, overrides, environ={}).dead.dead_letter == ("rabbitmq:/dead",)
