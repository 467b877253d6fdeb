"""URLs in settings: those accepted, secrets that stay hidden, what weakens them, password files."""

from __future__ import annotations

from pathlib import Path

import pytest

from delaybridge.publish.kafka.configuration import _ALLOWED as ALLOWED
from delaybridge.publish.rabbitmq.publisher import _OPTIONS as OPTIONS
from delaybridge.settings import password_file
from delaybridge.settings.password_file import PasswordFile
from delaybridge.settings.settings import Settings
from delaybridge.settings.url_options import HARMLESS
from delaybridge.settings.urls import (
    SecretUrl,
    check_broker_url,
    check_redis_url,
    redact,
    redact_text,
)
from tests.rigs.settings_file import CANARY, load, refusal

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    "url",
    [
        *("redis://h", "redis://h:1/15", "rediss://u:p%40w@h:6379/0?ssl_ca_certs=/ca.pem"),
        *("redis://[::1]:6379/0", "unix:///run/redis.sock?db=1"),
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
        *(("redis", "redis://:a@{}@h:1/0"), ("redis", "redis://:{}/a@h:1/0")),
        *(("redis", "redis://:a?{}@h:1/0"), ("brokers", "amqp://u:{}/a@h/")),
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
        *("amqp://guest:guest@h:5672/%2F", "amqps://h", "amqp://h/vhost?x=1"),
        *("kafka://a:9092,b:9093", "kafkas://u:p@[::1]:9092", "memory://", "memory:///x"),
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
        *("redis://:{}@h:1/0", "redis://{}@h", "amqp://user:{}@h/v", "amqp://user:a@{}@h/v"),
        *("amqp://user:a/{}@h/v", "amqp://user:{}?b@h/v", "amqp://user:a#{}@h/v", "user:{}@h"),
        *("redis:{}@h", "redis:/:{}@h", "user:/{}@h", "kafka://h:1?sasl_password={}&x=1"),
        *("kafka://h:1?x=1;sasl.password={}", "kafka://h:1?pass%77ord={}"),
        *("rediss://h?ssl_password={}#x", "unix:///s?password={}"),
        'kombu+sentinel://h?transport.sentinel_kwargs={{"password":"{}"}}',
        "kombu+sqs://?transport.predefined_queues=%7B%22q%22%3A%7B%22access_key_id%22%3A%22{}%22%7D%7D",
        "amqps://h/?ssl_options={{'certfile':'/c','password':'{}'}}",
        'kombu+amqps://h?transport.ssl={{"keyfile_password":"{}"}}',
        "kombu+redis://h?transport.sentinels=[%22redis://:{}%40h%22]",
        "kombu+redis://h?transport.global_keyprefix=x&transport.proxy=http://u:{}%40proxy",
        *("redis://:{}", "redis://:{}/0", "redis://u:{}", "redis://:a/{}", "redis://:a,{}"),
        *(
            "redis:{}",
            "redis:/:{}",
            "redis:///:{}",
            "kafka://h:1,u:{}",
            "amqp://h:{}/v?heartbeat=5",
        ),
        *("redis://h?foo={}", "redis://h?{}", "kafka://h?client.id=a&acks={}", "redis://h?db={}@x"),
        *("https://{}:@h/base", "https://{}@h/base"),
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
        ("kafka://h:1?x=1&client.id=k", "kafka://h:1?x=***&client.id=k"),
        ("kafka://[::1]:9092,b:9093?x=", "kafka://[::1]:9092,b:9093?x="),
        ("h:6379/0", "h:6379/0"),
        ("unix:///run/a:b.sock?db=1", "unix:///run/a:b.sock?db=1"),
        ("", ""),
    ],
)
def test_redact_keeps_the_parts_that_are_not_secret(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize(
    "text",
    [
        *(
            "redis://HOST[:PORT][/DB], or",
            "redis+cluster://HOST[:PORT],HOST...;",
            "http://HOST:PORT",
        ),
        *(
            "at http://127.0.0.1:8645.",
            "kafka://a:1,b:2: down",
            "(amqp://h:5672)",
            "amqp://h: down",
        ),
    ],
)
def test_a_sentence_around_a_url_and_the_form_of_one_stay(text: str) -> None:
    assert redact_text(text) == text


def test_the_options_of_brokers_are_shown_but_those_that_hold_a_secret() -> None:
    hidden = {name for name in ALLOWED | OPTIONS if name not in HARMLESS}
    assert hidden == {
        *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.config", "sasl.password"),
        *("sasl.oauthbearer.token.endpoint.url", "ssl.ca.pem", "ssl.certificate.pem"),
        *("ssl.key.password", "ssl.key.pem", "ssl.keystore.password"),
        *("client_properties", "ssl_options", "tcp_options"),
    }


@pytest.mark.parametrize(
    "toml",
    [
        "[ingest]\nmanagement = ['https://u:{}@h']",
        "[ingest]\nexchanges = [['amqp://u:{}@h']]",
        "[brokers]\nrabbitmq = {{password = '{}'}}",
        "[brokers.rabbitmq]\nurl = '{}'",
        "[redis]\nurl = ['{}']",
        '[ledger]\nurl = "postgresql+psycopg://u:a\'{}@h"',
        '[ingest]\nmanagement = ["https://u:a\'{}@h"]',
        "[http]\nproxy = 'u:{}'",
        "[brokers]\n'amqp://u:{}@h' = 'x'",
    ],
)
def test_no_secret_of_a_list_or_table_in_a_refusal(toml: str) -> None:
    said = "\n".join(refusal(toml.format(CANARY)))
    assert "got" in said
    assert CANARY not in said


def test_no_secret_in_any_output_of_settings() -> None:
    settings = load(
        f'[redis]\nurl = "redis://:{CANARY}@h"\n',
        env={"DELAYBRIDGE_BROKERS__RABBITMQ": f"amqp://u:{CANARY}@h"},
    )
    shown = [repr(settings), str(settings), f"{settings.brokers}", *settings.cautions()]
    shown += [f"{value}" for _, value in settings.items()]
    assert not [text for text in shown if CANARY in text]


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
        *("redis.url", "brokers.a", "brokers.b", "publish.heartbeat_s", "settings.toml")
    ]
    Path("settings.toml").chmod(0o600)
    assert len(settings.cautions()) == len(found) - 1
    assert Settings().cautions() == []
    open_door = load(flags={"redis": {"url": "rediss://h?ssl_cert_reqs=none"}})
    assert "ssl_cert_reqs=none" in open_door.cautions()[0]


def test_a_file_of_digests_may_be_read_by_others_and_one_of_tokens_may_not() -> None:
    file = Path("tokens")
    settings = load(flags={"serve": {"token_file": str(file)}})
    assert settings.cautions() == [], "there is none yet"
    file.write_text(f"# keda\nsha256:{'0' * 64} read keda\n\n")
    file.chmod(0o440)
    assert settings.cautions() == []
    file.write_text(file.read_text() + "Zr7qK2mVx9TbWc4P\n")
    assert settings.cautions()[0].startswith("serve.token_file: others may read tokens")
    assert load(flags={"serve": {"token_file": "/"}}).cautions(), "no file, and no failure"


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
