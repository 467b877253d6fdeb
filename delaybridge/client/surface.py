"""What both clients have: the constructor, the verbs, and the objects with further verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from delaybridge.client.annexes import ViewVerbs
from delaybridge.client.dead import DeadVerbs
from delaybridge.client.destinations import DestinationVerbs
from delaybridge.client.messages import MessageVerbs
from delaybridge.client.requests import Requests, arguments_of
from delaybridge.client.topics import TopicVerbs
from delaybridge.client.verbs import Verb, moved, verbs_of
from delaybridge.message import Limits
from delaybridge.settings.durability import HOT_WINDOW_S, check_durability
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.recorder import open_recorder

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings


class FormerNames(Requests):
    """Verbs that were methods of the clients themselves, for one release."""

    kick, discard = moved(DeadVerbs.kick, "dead"), moved(DeadVerbs.discard, "dead")
    kick_many = moved(DeadVerbs.kick_many, "dead")
    discard_many = moved(DeadVerbs.discard_many, "dead")
    quarantined = moved(DeadVerbs.quarantined, "dead")
    pause = moved(DestinationVerbs.pause, "destinations")
    resume = moved(DestinationVerbs.resume, "destinations")
    limit = moved(DestinationVerbs.limit, "destinations")
    spread = moved(DestinationVerbs.spread, "destinations")
    retry_plan = moved(DestinationVerbs.retry_plan, "destinations")
    set_rule = moved(DestinationVerbs.set_rule, "destinations")
    purge = moved(DestinationVerbs.purge, "destinations")
    receive = moved(TopicVerbs.receive, "topics")
    finish = moved(TopicVerbs.finish, "topics")
    extend = moved(TopicVerbs.extend, "topics")
    release = moved(TopicVerbs.release, "topics")


class ClientVerbs(MessageVerbs, ViewVerbs, FormerNames):
    """What `Client` and `AsyncClient` have in common, but how they wait."""

    def __init__(
        self,
        redis_url: str = "redis://127.0.0.1:6379/0",
        *,
        namespace: str = "delaybridge",
        brokers: Mapping[str, str] | None = None,
        buckets: int | None = None,
        limits: Limits | None = None,
        timeout_s: float = 5.0,
        durability: str = "memory",
        ledger: str | None = None,
        hot_window_s: float = HOT_WINDOW_S,
    ) -> None:
        kept = check_durability(durability)
        calls = Calls(namespace, brokers, buckets, limits or Limits(), kept)
        Requests.__init__(self, calls)
        recorder = open_recorder(kept, ledger, namespace, timeout_s, hot_window_s)
        self._connect(redis_url, timeout_s=timeout_s, durability=kept, recorder=recorder)
        calls.use(self._store)

    def _connect(self, redis_url: str, **options: Any) -> None:
        """Make the store; nothing is sent yet."""
        raise NotImplementedError

    @classmethod
    def from_settings(cls, settings: Settings | None = None) -> Self:
        """A client as the settings say; by default the environment and `delaybridge.toml`.

        Raises:
            ConfigError: a setting is missing or wrong.
        """
        return cls(**arguments_of(settings))

    @property
    def timeout_s(self) -> float:
        """The seconds in which each method returns or raises StoreUnavailable."""
        return self._store.timeout_s

    def __dir__(self) -> list[str]:
        """For completion: without the names that are deprecated."""
        rows = vars(FormerNames).values()
        former = {row.name for row in rows if isinstance(row, Verb)}
        return [name for name in super().__dir__() if name not in former]


TABLE: dict[str, Verb[..., Any]] = {
    **verbs_of(MessageVerbs),
    **{f"dead.{name}": row for name, row in verbs_of(DeadVerbs).items()},
    **{f"destinations.{name}": row for name, row in verbs_of(DestinationVerbs).items()},
    **{f"topics.{name}": row for name, row in verbs_of(TopicVerbs).items()},
}
"""Every verb of the engine, by the name that it has at a client."""
