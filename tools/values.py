"""The values of the chart as a table: `python -m tools.values` writes the README beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "helm" / "delaybridge"
PAGE = CHART / "README.md"
_HEAD = "| value | default | what |\n|---|---|---|\n"


def leaves(schema: dict[str, Any], values: Any, path: str = "") -> Iterator[tuple[str, Any, str]]:
    """Each value that can be set: its path, its default, and what the schema says of it."""
    for name, each in schema["properties"].items():
        if path + name == "global":  # Helm's own
            continue
        if "properties" in each:
            yield from leaves(each, values[name], f"{path}{name}.")
        else:
            yield path + name, values[name], each["description"]


def table() -> str:
    """The table, made of values.yaml and values.schema.json."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = (
        f"| `{path}` | {_shown(value)} | {what} |" for path, value, what in leaves(schema, values)
    )
    return _HEAD + "\n".join(rows) + "\n"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value).replace('"', "")
    return f"`{text}`" if value not in ("", [], {}) else ""


if __name__ == "__main__":
    pattern = re.escape(_HEAD) + r"(?:\|.*\n)*"
    PAGE.write_text(re.sub(pattern, lambda _: table(), PAGE.read_text()))
