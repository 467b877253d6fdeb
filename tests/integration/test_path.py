"""One message's life is short, and docs/internals.md names the files that it runs through."""

from __future__ import annotations

import re

import pytest

from tests.rigs.bridge import ROOT
from tests.rigs.path import LIST, PACKAGE, PAGE, Life, measure, table

TEXT = PAGE.read_text()
LIFE = TEXT.split("\n## One message's life\n")[1].split("\n## ")[0]
NAMED = frozenset(re.findall(r"`((?:\w+/)*\w+\.(?:py|lua))`", LIFE))
# Of files before a byte leaves the client; of files, lines and changes of file in the whole life.
SCHEDULING, FILES, LINES, CHANGES = 10, 39, 1550, 122


@pytest.fixture(scope="module")
def life(single_url: str, rabbitmq_url: str) -> Life:
    return measure(single_url, rabbitmq_url)


def test_the_way_of_a_message_is_short(life: Life) -> None:
    # the trace saw the client, the worker and the publisher, each in its own thread
    seen = {"client/client.py", "scan/scanner.py", "publish/rabbitmq/publisher.py"}
    assert seen <= set(life.whole.files())
    text = "\n".join(table(life))
    assert len(life.scheduling.files()) <= SCHEDULING, text
    assert len(life.whole.files()) <= FILES, text
    assert sum(life.whole.lines().values()) <= LINES, text
    assert sum(life.whole.entries().values()) - 1 <= CHANGES, text


def test_every_file_that_a_message_runs_through_is_named(life: Life) -> None:
    assert re.findall(r"`(.*?\.py)`", "".join(LIST.findall(TEXT))) == life.whole.files()


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_file_that_is_named_exists(name: str) -> None:
    folder = ROOT if name.startswith(("lua/", "tests/")) else PACKAGE
    assert (folder / name).is_file()
