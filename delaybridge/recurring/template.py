"""Placeholders in bodies and headers: `${due}`, `${due_ms}`, `${name}`; `$${` is a literal `${`.

A single brace or dollar sign means itself, so JSON needs no escapes.
"""

from __future__ import annotations

import re

from delaybridge import late
from delaybridge.errors import MessageError, quoted

_PLACE = late.pattern(rb"\$(\$)\{|\$\{(?:(due|due_ms|name)\})?")


def check_template(text: bytes, field: str) -> None:
    """MessageError `bad_template` if the text has another placeholder."""
    for found in _PLACE.finditer(text):
        if not found[1] and not found[2]:
            what = quoted(text[found.start() : found.start() + 30].decode(errors="replace"))
            detail = f"{what}: known are ${{due}}, ${{due_ms}}, ${{name}}; write $${{ for ${{"
            raise MessageError("bad_template", field, detail)


def filled(text: bytes, values: dict[str, str]) -> bytes:
    """The text with its placeholders replaced."""

    def value(found: re.Match[bytes]) -> bytes:
        return values[found[2].decode()].encode() if found[2] else b"${"

    return _PLACE.sub(value, text) if b"${" in text else text
