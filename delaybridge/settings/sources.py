"""Where settings come from: flags, the environment, one TOML file. Read, not yet checked.

Nothing here raises for what people wrote: every fault becomes one line, so that all of them can be
shown at once.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from delaybridge.errors import printable
from delaybridge.settings.urls import KINDS, own_kind_of, redact, redact_text

PREFIX = "DELAYBRIDGE_"
NESTED = "__"
CONFIG_VARIABLE = "DELAYBRIDGE_CONFIG"
DEFAULT_FILE = "delaybridge.toml"
MAX_FILE_BYTES = 2**20

KeyPath = tuple[str, ...]
Shape = Mapping[str, Sequence[str] | None]
"""Top-level key -> None for a plain setting, a section's keys, or () for one with free keys."""

BROKERS = ("brokers",)
_URLS = (("redis", "url"),)
_BROKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SHOWN_CHARS = 100
_SHORT_NAMES = {"REDIS_URL": ("redis", "url")}
_FLAGS = {
    ("namespace",): "--namespace",
    ("redis",): "--redis",
    ("brokers",): "--broker",
    ("scan", "processes"): "--processes",
    ("ingest", "exchanges"): "--exchange",
    ("ingest", "topics"): "--topic",
    ("ingest", "skip_offsets"): "--skip-offset",
    ("ingest", "take_over"): "--take-over",
}
_NOT_SETTINGS = (
    "DELAYBRIDGE_TEST_",
    CONFIG_VARIABLE,
    "DELAYBRIDGE_CACHE",
    "DELAYBRIDGE_FAILPOINTS",
)
# Kubernetes sets these in every pod beside a Service whose name begins with "delaybridge".
_SERVICE_LINK = re.compile(
    r"DELAYBRIDGE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?"
    r"|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


class Given(NamedTuple):
    """A value as somebody wrote it, and where: a flag, a variable or a file."""

    value: Any
    source: str


def gather(
    shape: Shape,
    config: str | Path | None,
    overrides: Mapping[str, Any],
    environ: Mapping[str, str],
) -> tuple[dict[KeyPath, Given], list[str]]:
    """The value that wins for each key, flag before environment before file; and every fault."""
    faults: list[str] = []
    chosen = _from_file(shape, config, environ, faults)
    chosen.update(_from_environment(shape, environ, faults))
    flags = {name: value for name, value in overrides.items() if value is not None}
    for path, value in _leaves(flags, shape, "flag", faults):
        flag = _FLAGS.get(path) or _FLAGS.get(path[:1]) or "override"
        chosen[path] = Given(value, flag)
    faults += _refused_names(chosen)
    return chosen, faults


def dotted(path: KeyPath) -> str:
    """A key path as people read it: `lease.ttl_ms`."""
    return printable(".".join(path))


def variable(path: KeyPath) -> str:
    """The environment variable of a key path."""
    for short, meant in _SHORT_NAMES.items():
        if meant == path:
            return PREFIX + short
    return PREFIX + NESTED.join(path).upper()


def _from_file(
    shape: Shape, config: str | Path | None, environ: Mapping[str, str], faults: list[str]
) -> dict[KeyPath, Given]:
    asked = config or environ.get(CONFIG_VARIABLE)
    file = Path(asked or DEFAULT_FILE)
    name = printable(str(file))
    if not asked and not file.exists():
        return {}
    try:
        tree = _read_toml(file)
    except ValueError as exc:
        faults.append(f"{name}: {exc}")
        return {}
    return {path: Given(value, name) for path, value in _leaves(tree, shape, name, faults)}


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ValueError("there is no such file") from None
    except IsADirectoryError:
        raise ValueError("is a directory; name a TOML file in it") from None
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
        raise ValueError(f"cannot be read: {reason}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"is larger than {MAX_FILE_BYTES // 2**20} MiB; is it a settings file?")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise ValueError(f"is not UTF-8 (at line {line})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as exc:
        raise ValueError(f"is not TOML: {printable(str(exc))[:200]}") from None


def _from_environment(
    shape: Shape, environ: Mapping[str, str], faults: list[str]
) -> dict[KeyPath, Given]:
    found: dict[KeyPath, Given] = {}
    for name in sorted(environ):
        value = environ[name]
        if not name.startswith(PREFIX) or not value or name.startswith(_NOT_SETTINGS):
            continue
        path = _path_of(name)
        if not _known(path, shape):
            if not _SERVICE_LINK.fullmatch(name):
                faults.append(f"{printable(name)}: unknown{_near_variable(name, shape)}")
        elif path in found and found[path].value != value:
            faults.append(f"{name}: differs from {found[path].source}; set one of them")
        else:
            found[path] = Given(value, name)
    return found


def _path_of(variable_name: str) -> KeyPath:
    bare = variable_name.removeprefix(PREFIX)
    return _SHORT_NAMES.get(bare) or tuple(bare.lower().split(NESTED))


def _known(path: KeyPath, shape: Shape) -> bool:
    if path[0] not in shape:
        return False
    inner = shape[path[0]]
    if inner is None:
        return len(path) == 1
    return len(path) == 2 and bool(path[1]) and (not inner or path[1] in inner)


def _leaves(
    tree: Mapping[str, Any], shape: Shape, source: str, faults: list[str]
) -> Iterator[tuple[KeyPath, Any]]:
    """Every value of the tree under its path, as far as the shape knows it."""
    for name, value in tree.items():
        if name not in shape:
            faults.append(f"{source}: {printable(name)}: unknown{_near((name,), shape)}")
            continue
        inner = shape[name]
        if inner is None:
            yield (name,), value
        elif not isinstance(value, Mapping):
            faults.append(f"{source}: {name}: is a section; write [{name}] and its keys below")
        else:
            yield from _section(name, value, shape, source, faults)


def _section(
    name: str, values: Mapping[str, Any], shape: Shape, source: str, faults: list[str]
) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in values.items():
        if value is None:
            continue
        if _known((name, key), shape):
            yield (name, key), value
        else:
            path = (name, key)
            faults.append(f"{source}: {dotted(path)}: unknown{_near(path, shape)}")


def known_paths(shape: Shape) -> list[KeyPath]:
    """Every key path that has a name."""
    paths: list[KeyPath] = []
    for name, inner in shape.items():
        paths += [(name,)] if inner is None else [(name, key) for key in inner]
    return paths


def _near(path: KeyPath, shape: Shape) -> str:
    """The keys most like it; the same name in another section counts as alike."""
    names = {dotted(known): known for known in known_paths(shape)}
    same = [name for name, known in names.items() if known[-1] == path[-1]]
    joined = [name for name, known in names.items() if "_".join(known) == "_".join(path)]
    near = same or joined or difflib.get_close_matches(dotted(path), names, n=3, cutoff=0.6)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    keys = shape.get(path[0]) if len(path) > 1 else [*shape]
    return f"; known here: {', '.join(keys)}" if keys else ""


def _near_variable(name: str, shape: Shape) -> str:
    names = [variable(path) for path in known_paths(shape)]
    if name.startswith(PREFIX + "BROKER"):
        return f"; a broker is {PREFIX}BROKERS{NESTED}NAME=URL"
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.7)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def shown(path: KeyPath, value: object) -> str:
    """A refused value as it was written; without secrets, bounded."""
    if not isinstance(value, str):
        text = repr(value)
    else:
        text = repr(redact(value) if path in _URLS or path[:1] == BROKERS else redact_text(value))
    text = printable(text)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def _refused_names(chosen: dict[KeyPath, Given]) -> list[str]:
    """Take brokers out whose names cannot be used, and say so."""
    faults = []
    for path in [path for path in chosen if path[:1] == BROKERS]:
        name, given = path[1], chosen[path]
        scheme = str(given.value).partition("://")[0].lower()
        if not _BROKER_NAME.fullmatch(name):
            allowed = "1 to 64 letters, digits, '_' or '-'; a destination is NAME:ADDRESS"
            got = f"the name {printable(name)[:_SHOWN_CHARS]!r}"
        elif name in KINDS.values() and (own_kind_of(scheme) or name) != name:
            allowed = f"under the name {name} a broker of that kind; choose another name"
            got = shown(path, given.value)
        else:
            continue
        faults.append(f"{given.source}: brokers: got {got}; allowed: {allowed}")
        del chosen[path]
    return faults
