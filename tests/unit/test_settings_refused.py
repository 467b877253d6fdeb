"""Settings that are refused: each line names its source, the setting and what is allowed."""

from __future__ import annotations

import pytest

from delaybridge.errors import ConfigError
from delaybridge.settings.names import variable
from delaybridge.settings.relations import RELATIONS
from delaybridge.settings.settings import Settings, descriptions
from tests.rigs.settings_file import BROKERS, LISTS, load, refusal

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bukets = 8", "bukets: unknown; did you mean buckets?"),
        ("[scan]\nttl_ms = 1", "scan.ttl_ms: unknown; did you mean lease.ttl_ms?"),
        ("[scna]\nx = 1", "scna: unknown; "),
        ("redis = 'redis://x'", "redis: is a section; write [redis] and its keys below"),
        ("redis_url = 'redis://x'", "redis_url: unknown; did you mean redis.url?"),
        ("[namespace]\nx = 1", "namespace: got a table or a list; allowed: 1 to 64 letters"),
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
        ("[front]\nlisten = 'localhost'", "front.listen: got 'localhost'; allowed: HOST:PORT"),
        ("[front]\nlisten = 'h:65536'", "front.listen: got 'h:65536'; allowed: HOST:PORT"),
        ("[front]\nnodes = ['rabbit-1']", "allowed: a list of HOST:PORT"),
        ("[front]\nother_protocols = ''", "got ''; allowed: refuse or pass"),
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
        ("[scan]\nclaim_ahead_ms = 4", ["scan.fire_lead_ms (10)", "scan.claim_ahead_ms (4)"]),
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


@pytest.mark.parametrize(
    "text",
    [
        *('["{0}"', '["{0}"],', '{{"{0}"}}', '("{0}")', "'{0}'", '"{0}"', '[["{0}"]]', "[1]"),
        *('{{"a":"{0}"}}', "[{0}]", "[" * 50_000, '{0},["{0}"]', '["", "{0}"]', '["{0}", null]'),
    ],
)
def test_what_looks_like_a_list_and_is_none_is_refused(text: str) -> None:
    for path in LISTS:
        name = variable(tuple(path.split(".")))
        (line,) = refusal(env=BROKERS | {name: text.format(LISTS[path][0])})
        assert f"{name}: {path}: got " in line


# routes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("exchanges", "a.delay=b.delay,b.delay=a.delay"), ("exchanges", "xx:orders.delay")),
        *(("exchanges", "a.delay b.delay"), ("exchanges", "orders")),
        *(("exchanges", "orders.delay;type=foo"), ("exchanges", '["a.delay"')),
        *(("exchanges", "x" * 300 + ".delay"), ("topics", "\udcff.delay")),
        ("topics", "orders"),
    ],
)
def test_a_route_that_ingest_would_refuse_is_refused_when_settings_are_loaded(
    field: str, value: str
) -> None:
    for brokers in ({}, {"rabbitmq": "amqp://h", "log": "kafka://h"}):
        with pytest.raises(ConfigError) as refused:
            Settings.load(
                None, {"brokers": brokers}, environ={f"DELAYBRIDGE_INGEST__{field.upper()}": value}
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


BOTH = {"rabbitmq": "amqp://h", "eu": "amqp://h2", "log": "kafka://h"}


@pytest.mark.parametrize(
    ("sources", "text", "is_refused"),
    [
        ({"exchanges": ["rabbitmq:a.delay"]}, "log:audit", True),
        ({"exchanges": ["rabbitmq:a.delay"]}, "l*:audit", True),
        ({"exchanges": ["rabbitmq:a.delay"]}, "pull:jobs", True),
        ({"topics": ["a.delay"]}, "eu:audit", True),
        ({"exchanges": ["rabbitmq:a.delay"]}, "eu:audit", False),
        ({"exchanges": ["rabbitmq:a.delay"]}, "*", False),
        ({"exchanges": ["rabbitmq:a.delay"]}, "*:audit", False),
        ({"exchanges": ["rabbitmq:a.delay"]}, "nowhere:audit", False),  # it may be elsewhere
        ({"exchanges": ["rabbitmq:a.delay"], "topics": ["a.delay"]}, "log:audit", False),
        ({}, "log:audit", False),  # sources of another host
        ({"exchanges": ["rabbitmq:a.delay"]}, "rabbitmq:", True),  # of each message the address
        ({"exchanges": ["rabbitmq:a.delay"]}, "rabbitmq:a/key", True),
        ({"exchanges": ["rabbitmq:a.delay"]}, "*:a*/*", True),
        ({"exchanges": ["rabbitmq:a.delay"]}, "rabbitmq:/jobs", False),
    ],
)
def test_a_destination_that_no_source_may_send_to_is_refused(
    sources: dict[str, list[str]], text: str, is_refused: bool
) -> None:
    overrides = {"brokers": BOTH, "ingest": {**sources, "destinations": [text]}}
    try:
        Settings.load(None, overrides, environ={})
    except ConfigError as refused:
        assert is_refused and f"ingest.destinations: got {text!r}" in str(refused)
    else:
        assert not is_refused


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


def test_what_no_file_can_hold_is_refused_as_well() -> None:
    """Bytes of the environment that are not UTF-8, and a program's names that are not text."""
    wrong = {
        variable(("redis", "password_file")): "\udc80",
        variable(("ingest", "group")): "\udc80",
    }
    with pytest.raises(ConfigError) as raised:
        Settings.load(environ=wrong, overrides={"scan": {1: 2}, 3: 4})  # type: ignore[dict-item]
    lines = str(raised.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        "redis.password_file", "scan.1", "ingest.group", "3",
    ]  # fmt: skip
