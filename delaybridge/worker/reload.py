"""SIGHUP reloads brokers, delay exchanges, delay topics and tenants; the rest needs a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from delaybridge.errors import ConfigError
from delaybridge.publish import PublishOptions, check_brokers
from delaybridge.settings.settings import Settings
from delaybridge.worker.eventlog import say

_RELOADED = ("brokers", "tenants", "ingest")


def reread(
    settings: Settings,
    check: Callable[[Settings], object] = lambda settings: None,
    kinds: Iterable[str] | None = None,
) -> Settings | None:
    """These settings with the reloadable sections as configured now; None if those are refused.

    check: raises ConfigError to refuse them. kinds: check only brokers of these kinds. Logs why
    they were refused, and which other settings have changed and need a restart.
    """
    try:
        written = settings.reread()
        if settings.brokers and not written.brokers:
            raise ConfigError("brokers: none is configured any more")
        check_brokers(
            written.brokers, PublishOptions.from_settings(written.publish, written.http), kinds
        )
        taken = settings.model_copy(update={name: getattr(written, name) for name in _RELOADED})
        check(taken)
    except ConfigError as exc:
        for line in str(exc).splitlines():
            say(logging.ERROR, "reload_refused", reason=line, hint="the settings stay as they were")
        return None
    old = dict(settings.items())
    changed = [
        path
        for path, value in written.items()
        if path.partition(".")[0] not in _RELOADED and value != old.get(path, value)
    ]
    if changed:
        say(logging.WARNING, "restart_needed", changed=",".join(changed))
    return taken


def changed_brokers(old: Settings, new: Settings) -> set[str]:
    """The names of brokers that were added, removed, or have another URL."""
    names = old.brokers.keys() | new.brokers.keys()
    return {name for name in names if old.brokers.get(name) != new.brokers.get(name)}
