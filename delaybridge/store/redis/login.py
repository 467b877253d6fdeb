"""Logging in to Redis with a password from a file, which is read at each connect."""

from __future__ import annotations

from typing import Any

from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError

from delaybridge.settings import password_file
from delaybridge.settings.password_file import PasswordFile


class FileLogin(CredentialProvider):
    """User and password; the password is read from its file each time."""

    def __init__(self, user: str, file: PasswordFile) -> None:
        self._user, self._file = user, file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """The arguments of AUTH. ConnectionError, which is retried, if the file is unreadable."""
        try:
            password = self._file.read()
        except ValueError as exc:
            raise RedisConnectionError(str(exc)) from None
        return (self._user, password) if self._user else (password,)


def logged_in(url: str) -> tuple[str, dict[str, Any]]:
    """The URL without `password_file`, and the other arguments for redis-py's `from_url`."""
    bare, file = password_file.split(url)
    if file is None:
        return bare, {}
    scheme, mark, rest = bare.partition("://")
    location, slash, path = rest.partition("/")
    without_user = f"{scheme}{mark}{location.rpartition('@')[2]}{slash}{path}"
    login = FileLogin(password_file.user_of(bare), file)
    return without_user, {"credential_provider": login}
