"""The settings for the sources of one broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from delaybridge.ingest.names import Names, tenant_of
from delaybridge.ingest.reach import AllowList, reach_of
from delaybridge.ingest.routes import Route
from delaybridge.publish import PublishOptions
from delaybridge.settings.entrances import IngestSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """The sources of one broker, and how they are read.

    silent_ms: after this long without a sign of an ingest process others take over its partitions.
    tenants: all that share the namespace.
    on_change: called when the state of a source has changed.
    """

    broker: str
    url: str
    routes: Sequence[Route]
    settings: IngestSettings
    publish: PublishOptions
    silent_ms: int
    tenants: Sequence[str] = ()
    on_change: Callable[[], None] = lambda: None

    @property
    def allowed(self) -> AllowList:
        """Destinations that a header may name."""
        return AllowList(self.settings.destinations)

    def names(self, route: Route) -> Names:
        """The ids that a source may name."""
        return Names(tenant_of(route.broker, route.source, self.settings.tenants), self.tenants)

    def reach(self, route: Route, kinds: Mapping[str, str]) -> str:
        """The reach of a source, as `reach_of` gives it; kinds: of the configured brokers."""
        return reach_of(route, kinds, self.settings.destinations, self.settings.trust)
