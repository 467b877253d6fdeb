"""Where settings are written: flags, the environment and one TOML file. Read here, not checked.

Each names the flag, variable or file that gave a value, for error messages and
`config show --sources`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from delaybridge.errors import printable
from delaybridge.settings.names import (
    BROKERS,
    PREFIX,
    KeyPath,
    dotted,
    fields_of,
    near_variable,
    path_of,
    value_at,
)
from delaybridge.settings.section import Section

CONFIG_VARIABLE = "DELAYBRIDGE_CONFIG"
DEFAULT_FILE = "delaybridge.toml"
MAX_FILE_BYTES = 2**20
MOST_EXPLAINED = 100  # faults with a hint: a similar name is looked for among all
_FLAGS = {
    ("namespace",): "--namespace",
    ("redis",): "--redis",
    ("brokers",): "--broker",
    ("scan", "processes"): "--processes",
    ("metrics", "port"): "--metrics-port",
    ("ingest", "exchanges"): "--exchange",
    ("ingest", "topics"): "--topic",
    ("ingest", "skip_offsets"): "--skip-offset",
    ("ingest", "take_over"): "--take-over",
}
_NOT_SETTINGS = (CONFIG_VARIABLE, *(PREFIX + name for name in ("TEST_", "CACHE", "FAILPOINTS")))
# Kubernetes sets these in every pod of a namespace with a Service whose name begins with
# "delaybridge".
_SERVICE_LINK = re.compile(
    r"DELAYBRIDGE_(?!BROKERS__|(METRICS|SERVE)__PORT$)(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?"
    r"|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


class SettingsSource:
    """One place where settings are written.

    tree: the values, nested as in the file. name_of: the flag, variable or file that
    gives the value of a key path.
    """

    def __init__(self, tree: dict[str, Any], name_of: Callable[[KeyPath], str]) -> None:
        self.tree, self.name_of = tree, name_of

    def value(self, path: KeyPath) -> Any:
        """The value written here under this key path; None if it is not there."""
        return value_at(self.tree, path)

    def without_plain_sections(self, model: type[Section]) -> Iterator[str]:
        """Remove every plain value written where a section belongs: one fault for each.

        Merged, it would be hidden by another source that gives a key of that section.
        """
        sections = {path[0] for path, *_ in fields_of(model) if len(path) > 1}
        for name in sections | {*BROKERS}:
            if not isinstance(self.tree.get(name, {}), Mapping):
                del self.tree[name]
                where = f"{self.name_of((name,))}: {name}"
                yield f"{where}: is a section; write [{name}] and its keys below"


def merged(found: Sequence[SettingsSource]) -> dict[str, Any]:
    """The values of all sources; of one that several give, the first source's."""
    tree: dict[str, Any] = {}
    for source in reversed(found):
        _put(tree, source.tree)
    return tree


def _put(tree: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        below = tree.get(name)
        if isinstance(value, Mapping) and isinstance(below, dict):
            value = {**below}
            _put(value, values[name])
        tree[name] = value


def flags(overrides: Mapping[str, Any]) -> SettingsSource:
    """Flags, nested as in the file; None means not given."""
    tree = {
        str(name): {str(key): inner for key, inner in value.items() if inner is not None}
        if isinstance(value, Mapping)
        else value
        for name, value in overrides.items()
        if value is not None
    }
    return SettingsSource(tree, lambda path: _FLAGS.get(path) or _FLAGS.get(path[:1]) or "override")


def environment(
    model: type[Section], environ: Mapping[str, str], faults: list[str]
) -> SettingsSource:
    """The variables `DELAYBRIDGE_*`; those that are empty or not settings are left out."""
    tree: dict[str, Any] = {}
    names: dict[KeyPath, str] = {}
    known = [path for path, *_ in fields_of(model) if path != BROKERS]
    for name in _variables(environ):
        path, value = path_of(name), environ[name]
        is_broker = path[:1] == BROKERS and len(path) == 2 and path[1]
        if path not in known and not is_broker:
            faults.append(_unknown(name, known, faults))
        elif path in names and environ[names[path]] != value:
            faults.append(f"{name}: differs from {names[path]}; set one of them")
        else:
            names[path] = name
            section = tree.setdefault(path[0], {}) if len(path) > 1 else tree
            section[path[-1]] = value
    return SettingsSource(tree, lambda path: dotted((names[path],)))


def _unknown(name: str, known: list[KeyPath], faults: list[str]) -> str:
    near = near_variable(name, known) if len(faults) < MOST_EXPLAINED else ""
    return f"{dotted((name,))}: unknown{near}"


def _variables(environ: Mapping[str, str]) -> list[str]:
    """The variables that are settings, or misspelt ones. An empty one counts as unset."""
    ours = sorted(name for name in environ if name.startswith(PREFIX) and environ[name])
    others = tuple(filter(_SERVICE_LINK.fullmatch, ours))
    return [name for name in ours if name not in others and not name.startswith(_NOT_SETTINGS)]


def settings_file(
    config: str | Path | None,
    environ: Mapping[str, str],
    faults: list[str],
) -> SettingsSource:
    """The file `config`, else DELAYBRIDGE_CONFIG, else ./delaybridge.toml if there is one."""
    asked = config or environ.get(CONFIG_VARIABLE)
    file = Path(asked or DEFAULT_FILE)
    name = printable(str(file))
    tree: dict[str, Any] = {}
    if asked or file.exists():
        try:
            tree = _read_toml(file)
        except ValueError as exc:
            faults.append(f"{name}: {exc}")
    return SettingsSource(tree, lambda path: name)


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
