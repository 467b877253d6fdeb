"""The console without a server: its files, its words, and how it writes numbers and times."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from pathlib import Path

import pytest

import delaybridge
from delaybridge.operate.troubles.listed import listed
from delaybridge.serve import console
from delaybridge.serve.console.rendering import (
    ago,
    cut,
    decoded,
    language_of,
    link,
    number,
    rate,
    segment,
    size,
    words,
)
from delaybridge.serve.console.screens.login import own_path
from delaybridge.serve.console.screens.pages import PAGES

ROOM = Path(console.__file__).parent
STATIC = ROOM / "static"
VENDORED = json.loads((STATIC / "vendor.json").read_text())
TEMPLATES = sorted((ROOM / "templates").glob("*.html"))
PACKAGE = Path(delaybridge.__file__).parent
SENTENCE = re.compile(r"""\b_\(\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")


@pytest.mark.parametrize("library", VENDORED, ids=lambda each: each["name"])
def test_vendored_files_are_those_that_were_published(library: dict[str, object]) -> None:
    files = library["files"]
    assert isinstance(files, dict) and library["license_file"] in files
    for name, digest in files.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest, name


def test_every_minified_file_is_listed() -> None:
    listed = {name for library in VENDORED for name in library["files"]}
    assert {each.name for each in STATIC.glob("*.min.*")} <= listed


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda each: each.name)
def test_pages_have_no_inline_script_or_style(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:|hx-on|\|safe", text)
    # Of the types only data: a browser runs neither.
    scripts = re.findall(r"<script([^>]*)>", text)
    assert all(re.search(r'src=|type="(application/json|text/html)"', each) for each in scripts)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda each: each.name)
def test_json_stands_where_its_quotes_end_no_attribute(path: Path) -> None:
    """`tojson` escapes all but double quotes, and nothing escapes it again."""
    made = re.finditer(
        r"(.)\{\{(?:(?!\}\}).)*?\|tojson(?!\|forceescape)", path.read_text(), re.DOTALL
    )
    for one in made:
        assert one[1] in "'>", one[0]


def test_nothing_is_loaded_from_elsewhere() -> None:
    own = [*TEMPLATES, *(each for each in STATIC.iterdir() if ".min." not in each.name)]
    for path in own:
        if path.suffix in (".html", ".js", ".css"):
            found = re.findall(
                r"""(?:src|href|url\(|fetch\()\W*(https?:)?//[a-z]""", path.read_text()
            )
            assert not found, path.name


def sentences() -> set[str]:
    """Every sentence of every page: in templates, in calls of their macros, and in titles."""
    found = {page.title for page in PAGES}
    for path in TEMPLATES:
        text = path.read_text()
        found |= {(a or b).replace('\\"', '"') for a, b in SENTENCE.findall(text)}
        found |= set(re.findall(r'{{ (?:entry|card)\("[^"]*", "[^"]*", "([^"]*)"', text))
        found |= set(re.findall(r'{{ card\("[^"]*", "([^"]*)"', text))
    return found


def alert_templates() -> set[str]:
    """The template of every `Sentence` of the package, which must be a literal, and what is said
    of each trouble that a banner may show."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            if call.func.id == "Sentence" and path.name != "listed.py":
                found.add(ast.literal_eval(call.args[0]))
    shown = (PACKAGE / "operate" / "troubles").glob("*.py")
    codes = {code for path in shown for code in re.findall(r'"([a-z_]+)"', path.read_text())}
    found |= {each.says for code, each in listed().items() if code in codes}
    assert len(found) > 20
    return found - {"{what}"}


def test_every_sentence_has_a_translation() -> None:
    missing = sorted((sentences() | alert_templates()) - words("zh").keys())
    assert not missing, json.dumps(missing, indent=1)


def test_a_translation_has_the_placeholders_of_its_sentence() -> None:
    for text, translated in words("zh").items():
        assert set(re.findall(r"{\w*}", text)) == set(re.findall(r"{\w*}", translated)), text


@pytest.mark.parametrize(
    ("accepted", "chosen", "language"),
    [
        ("", "", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "", "zh"),
        ("en-US,en;q=0.9,zh;q=0.8", "", "en"),
        ("de,zh;q=0.5,en;q=0.4", "", "zh"),
        ("zh", "en", "en"),
        ("en", "zh", "zh"),
        ("en", "<script>", "en"),
        ("zh;q=0.7.7,en", "", "en"),
    ],
)
def test_the_language_is_chosen_or_asked_for(accepted: str, chosen: str, language: str) -> None:
    assert language_of({"accept-language": accepted}, chosen) == language


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/messages?state=dead", "/messages?state=dead"),
        ("//evil.example/", "/"),
        ("/\\evil.example/", "/"),
        ("https://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nSet-Cookie: x=y", "/"),
        ("/ü", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_this_server_only(given: str, path: str) -> None:
    assert own_path(given) == path


def test_numbers_are_written_for_people() -> None:
    assert [number(None), number(1234567), number(0)] == ["–", "1,234,567", "0"]
    assert [rate(None), rate(0.0), rate(0.25), rate(1902.4)] == ["–", "0", "0.2", "1,902"]
    assert [size(None), size(213), size(1400), size(2 * 1024**2)] == [
        "–",
        "213 B",
        "1.4 KB",
        "2.0 MB",
    ]
    assert [segment("a/b:c~d é"), link("/m", a=None, b="x y", c="")] == [
        "a%2Fb%3Ac%7Ed%20%C3%A9",
        "/m?b=x+y",
    ]


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("rabbitmq:orders/eu", "rabbitmq:orders/eu"),
        ("rabbitmq:%E8%AE%A2%E5%8D%95/k", "rabbitmq:订单/k"),
        ("rabbitmq:a%2Fb%25%20c/k", "rabbitmq:a%2Fb% c/k"),
        ("rabbitmq:%FF/k", "rabbitmq:%FF/k"),
        ("rabbitmq:%E2%80%AEx", r"rabbitmq:\u202ex"),
        ("rabbitmq:%3Cb%3E", "rabbitmq:&lt;b&gt;"),
        ("pull:" + "x" * 400, "pull:" + "x" * 17 + "…" + "x" * 22),
    ],
)
def test_names_are_decoded_and_long_ones_lose_their_middle(name: str, seen: str) -> None:
    shown = re.sub("^<span.*?>|</span>$", "", cut(name, decoded(name)))
    assert shown == seen
    assert (f'title="{name}"' in cut(name, decoded(name))) is (shown != name)


def test_a_time_can_be_counted_on() -> None:
    text = ago("en", 1_000_900_000, 1_000_000_000)
    assert ">in 15m</time>" in text and 'data-at="1000900000"' in text
    assert ">15m ago</time>" in ago("en", 1_000_000_000, 1_000_900_000)
    assert ago("en", None, 0) == "–"
    assert ">15m前</time>" in ago("zh", 1_000_000_000, 1_000_900_000)
    assert " data-next>now</time>" in ago("en", 1_000_000_000, 1_000_000_400, is_next=True)
