"""Passwords in files. Each connect reads the file again, so a changed password needs no restart."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from delaybridge.errors import printable
from delaybridge.settings.url_options import taken

OPTION = "password_file"
_MOST_BYTES = 64 * 1024


class PasswordFile(NamedTuple):
    """A file that holds one password."""

    path: str

    def read(self) -> str:
        """The password in the file now, without the line end; ValueError if it cannot be read."""
        try:
            with Path(self.path).open("rb") as file:
                text = file.read(_MOST_BYTES).decode()
        except (OSError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or "it is not UTF-8"
            raise ValueError(f"{OPTION}: {printable(self.path)} cannot be read: {reason}") from None
        password = text.removesuffix("\n").removesuffix("\r")
        if not password:
            raise ValueError(f"{OPTION}: {printable(self.path)} is empty")
        return password


def split(url: str) -> tuple[str, PasswordFile | None]:
    """Split a URL into the URL without the option, and the file that the option names."""
    bare, path = taken(url, OPTION)
    return bare, None if path is None else PasswordFile(path)


def user_of(url: str) -> str:
    """The user in a URL, unquoted; empty if there is none."""
    location = url.partition("://")[2].partition("/")[0].partition("?")[0]
    return unquote(location.rpartition("@")[0].partition(":")[0])
