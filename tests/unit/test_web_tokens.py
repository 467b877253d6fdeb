"""Tokens: which are too easy to guess, and how one is made."""

from __future__ import annotations

import hashlib
import logging
import random
import string
from pathlib import Path

import pytest

from delaybridge.client.verbs import Scope
from delaybridge.errors import ConfigError
from delaybridge.serve.access.guessing import weakness
from delaybridge.serve.access.tokens import TokenFile, add_token
from tests.rigs.command_line import Run

SOUND = "Zr7qK2mVx9TbWc4P"
DIGITS, SAFE = string.hexdigits[:16], string.ascii_letters + string.digits + "-_"


@pytest.mark.parametrize(
    "token",
    [
        "Password12345678", "P@ssw0rd12345678", "changeme12345678", "secret-token-2026",
        "my-secret-token-123", "thisisasecrettoken", "administrator123", "delaybridge12345",
        "1q2w3e4r5t6y7u8i", "1qaz2wsx3edc4rfv", "qazwsxedcrfvtgby",
        "qwertyuiop123456", "1234567890abcdef", "abcdefgh12345678ABCDEFGH", "x7Kp9Qz2x7Kp9Qz2",
        "Summer2024!Summer2024!", "iloveyouiloveyou2", "elephantgiraff12", "MyPasswordIsSecret1",
        "rrrrrrrr0123456789abcdef", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "short",
    ],
)  # fmt: skip
def test_a_token_that_is_easy_to_guess_is_refused_by_its_rule(token: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{SOUND} read\n{token} admin\n")
    with pytest.raises(ConfigError) as caught:
        TokenFile(str(file))
    said = str(caught.value)
    assert "line 2: the token" in said and "serve token new" in said
    assert any(rule in said for rule in ("common words", "different characters", "16 random"))
    assert token not in said


@pytest.mark.parametrize(
    ("chars", "count"), [(DIGITS, 32), (DIGITS, 64), (SAFE, 16), (SAFE, 43)], ids=str
)
def test_a_token_made_at_random_is_taken(chars: str, count: int) -> None:
    drawn = random.Random(7)
    tokens = ["".join(drawn.choices(chars, k=count)) for _ in range(200)]
    assert [each for each in tokens if weakness(each)] == []


def test_a_digest_of_a_token_that_is_easy_to_guess_lets_nobody_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, weak = tmp_path / "tokens", "Password12345678"
    digests = [hashlib.sha256(each.encode()).hexdigest() for each in (weak, SOUND)]
    file.write_text(f"sha256:{digests[0]} admin boss\nsha256:{digests[1]} read eye\n")
    tokens = TokenFile(str(file))
    for _ in range(2):
        assert tokens.find(weak) is None
        found = tokens.find(SOUND)
        assert found is not None and found.name == "eye"
    said = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(said) == 1 and "boss is refused" in said[0] and weak not in said[0]


def test_a_new_token_counts_and_only_its_digest_is_kept(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{SOUND} read eye")  # without the end of its line
    tokens = TokenFile(str(file))
    made = run("serve", "token", "new", "write", "shop", "--token-file", str(file))
    assert made.code == 0, made.err
    text = made.out.strip()
    assert text not in file.read_text() and len(text) == 64
    found, first = tokens.find(text), tokens.find(SOUND)
    assert found is not None and (found.scope, found.name) == (Scope.WRITE, "shop")
    assert first is not None and first.name == "eye"


def test_a_new_token_may_have_a_tenant_that_there_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_TENANTS", "acme,beta")
    new = ("serve", "token", "new", "--token-file", str(tmp_path / "f"), "write", "shop")
    for tenant in ("acme", "beta"):  # the file has a line with a tenant by then
        text = run(*new, tenant).out.strip()
        found = TokenFile(str(tmp_path / "f"), ["acme", "beta"]).find(text)
        assert found is not None and found.tenant == tenant
    refused = run(*new, "other")
    assert refused.code == 2 and "'other' is not among tenants: acme, beta" in refused.err


def test_a_token_of_a_tenant_that_is_new_keeps_no_other_token_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{SOUND} read eye\n")
    tokens = TokenFile(str(file), ["acme"])
    add_token(file, Scope.WRITE, "shop", "gamma", ["acme", "gamma"])
    assert tokens.find(SOUND) is not None and "'gamma' is not among tenants: acme" in caplog.text
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    assert tokens.find(SOUND) is None


def test_one_more_process_takes_the_tokens_that_have_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{SOUND} read eye\n{SOUND}0 write w newtenant\nshort\n")
    tokens = TokenFile(str(file), ["acme"], again=True)
    assert [each.name for each in tokens.all()] == ["eye"]
    assert "'newtenant' is not among tenants: acme" in caplog.text and "line 3" in caplog.text
    file.write_bytes(b"\xff")
    assert TokenFile(str(file), again=True).all() == []
    assert "no token counts in this process" in caplog.text
    file.unlink()
    assert TokenFile(str(file), again=True).all() == []


def test_a_new_file_of_tokens_is_for_its_owner(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    texts = [add_token(file, Scope.ADMIN, "") for _ in range(2)]
    assert file.stat().st_mode & 0o777 == 0o600
    tokens = TokenFile(str(file))
    assert [each and each.name for each in map(tokens.find, texts)] == ["line-1", "line-2"]
    as_json = run("--json", "serve", "token", "new", "--token-file", str(file))
    assert as_json.objects[0]["scope"] == "admin" and not as_json.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["new"], "serve.token_file"),
        (["new", "owner", "--token-file", "f"], "owner"),
        (["new", "read", "a b", "--token-file", "f"], "a name has"),
        (["new", "read", "", "acme", "--token-file", "f"], "comes a name"),
        (["new", "--token-file", "no/such/folder"], "No such file"),
        (["new", "--token-file", "faulty"], "line 1"),
    ],
)
def test_what_makes_no_token(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DELAYBRIDGE_TENANTS", "acme")
    (tmp_path / "faulty").write_text("oops\n")
    refused = run("serve", "token", *args)
    assert refused.code == 2 and says in refused.err and not refused.out
    assert (tmp_path / "faulty").read_text() == "oops\n" and not (tmp_path / "f").exists()


def test_options_for_serving_do_not_go_with_a_verb(run: Run) -> None:
    for given in (["--port", "1"], ["--read-only"], ["--token-file", "x"]):
        refused = run("serve", *given, "token", "new")
        assert refused.code == 2 and given[0] in refused.err
