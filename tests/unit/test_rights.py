"""What the Redis user is tried for: every command that a script or a call sends, and no less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from delaybridge.operate.parts import rights
from delaybridge.store.namespace import damage
from delaybridge.store.protocol.scripts import scripts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
LINE = re.compile(r"^ACL SETUSER (\w+) (on .*)$", re.M)
OF_THE_CONNECTION = {
    "ping",
    "hello",
    "auth",
    "client|setname",
    "evalsha",
    "script|exists",
    "script|load",
}

WISHED = {"worker": {"client|id", "client|list"}}  # a worker does its work without them


def granted(role: str) -> set[str]:
    """The commands that the page of security gives a user of this role."""
    (rules,) = [rules for name, rules in LINE.findall(PAGE) if name == role]
    return {word[1:] for word in rules.split() if word.startswith("+")}


def test_every_command_of_a_script_is_tried() -> None:
    called = set(re.findall(r"redis\.call\('(\w+)'", "".join(s for s, _ in scripts().values())))
    assert called <= {*rights.COMMANDS}
    assert called - {"SPUBLISH"} <= set(rights.commands_of("operator"))


def test_every_plain_command_is_tried() -> None:
    texts = [path.read_text() for path in (ROOT / "delaybridge").rglob("*.py")]
    plain = {name for text in texts for name in re.findall(r'\bplain\(\s*"(\w+)"', text)}
    looks = {verb for reads in damage.READS.values() for verb, *_ in reads}
    assert len(plain) > 5
    assert plain | looks <= set(rights.commands_of("operator"))
    for role in rights.ROLES:
        assert looks <= set(rights.commands_of(role))


@pytest.mark.parametrize("role", rights.ROLES)
def test_the_page_of_security_grants_the_rights_that_a_role_needs_and_no_more(role: str) -> None:
    needed = {name.lower() for name in rights.commands_of(role)}
    assert granted(role) == needed | OF_THE_CONNECTION | WISHED.get(role, set())


@pytest.mark.parametrize("role", rights.ROLES)
def test_the_page_of_security_grants_what_a_cluster_needs_and_no_more(role: str) -> None:
    (rules,) = re.findall(rf"^ACL SETUSER {role} (\+asking .*)$", PAGE, re.M)
    names = [*rights.OF_A_CLUSTER, *rights.clustered(role)]
    needed = {name.lower().replace(" ", "|") for name in names}
    assert {word[1:] for word in rules.split()} == needed
