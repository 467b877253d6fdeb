"""SIGHUP: brokers, delay exchanges and delay topics are read again; all else needs a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from delaybridge.errors import ConfigError
from delaybridge.publish import check_brokers
from delaybridge.settings.settings import Settings
from delaybridge.worker.eventlog import say

_TAKEN = ("brokers", "ingest")  # sections


def reread(
    settings: Settings,
    check: Callable[[Settings], object] = lambda settings: None,
    kinds: Iterable[str] | None = None,
) -> Settings | None:
    """The settings with what is taken over of those written now; None if they are refused.

    check: raises ConfigError, too. kinds: of the brokers that are used. The log says what was
    refused, or needs a restart.
    """
    try:
        written = settings.reread()
        if not written.brokers:
            raise ConfigError("brokers: none is configured")
        check_brokers(written, kinds)
        taken = settings.model_copy(update={name: getattr(written, name) for name in _TAKEN})
        check(taken)
    except ConfigError as exc:
        for line in str(exc).splitlines():
            say(logging.ERROR, "reload_refused", reason=line, hint="the settings stay as they were")
        return None
    now, then = dict(written.items()), dict(settings.items())
    others = [path for path in now if path in then and now[path] != then[path]]
    if others := [path for path in others if path.partition(".")[0] not in _TAKEN]:
        say(logging.WARNING, "restart_needed", changed=",".join(others))
    return taken


def changed_brokers(old: Settings, new: Settings) -> set[str]:
    """The names of those added, removed, or now elsewhere."""
    names = old.brokers.keys() | new.brokers.keys()
    return {name for name in names if old.brokers.get(name) != new.brokers.get(name)}
