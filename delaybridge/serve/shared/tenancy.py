"""A tenant's part of a client: its own messages, named as it gave them.

What is not here does not exist for a token of a tenant. Ids go in with the tenant in front and come
out without, so that handlers need not know of tenants.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar

import msgspec

from delaybridge.accept.accept import check_id
from delaybridge.accept.destination import of_tenant
from delaybridge.client.async_client import AsyncClient
from delaybridge.client.requests import Named
from delaybridge.client.surface import TABLE
from delaybridge.client.topics import Items, named
from delaybridge.client.verbs import verbs_of
from delaybridge.errors import MessageConflict
from delaybridge.ledger.recording.life_of_id import RecordedLife
from delaybridge.message import PULL, Message, OnConflict, State, id_as_given, id_in_store
from delaybridge.operate.views import questions
from delaybridge.operate.views.listing import Cursor, Page
from delaybridge.recurring.client import RecurringVerbs
from delaybridge.recurring.definition import check_name
from delaybridge.recurring.definitions import Recurring
from delaybridge.store.messages.pulling import ReceivedMessage
from delaybridge.store.messages.record_filters import Conditions
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.messages.selection import Selected, Selection
from delaybridge.store.protocol.stored import Stored

ROWS = TABLE | {f"recurring.{name}": row for name, row in verbs_of(RecurringVerbs).items()}
"""Every verb of the client, also those of recurring definitions."""


class Tenancy:
    """Names of one tenant, as the store has them and as it gave them."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.prefix = id_in_store("", tenant)

    def in_store(self, id: str) -> str:
        """The id in the store; MessageError `bad_id`."""
        return check_id(id, None, self.tenant)

    def topic(self, topic: str) -> str:
        """The pull topic in the store."""
        return of_tenant(f"{PULL}:{topic}", self.tenant).removeprefix(f"{PULL}:")

    def given(self, id: str) -> str:
        """The id as it was given."""
        return id_as_given(id, self.tenant)

    def text(self, text: str) -> str:
        """A sentence or JSON in which ids and destinations are quoted, without the tenant."""
        for before in ('"', "'", f"{PULL}:") if self.tenant else ():
            text = text.replace(before + self.prefix, before)
        return text

    def receipt(self, made: Receipt) -> Receipt:
        """A receipt as its tenant sees it."""
        return Receipt(made.answer, self.given(made.id), made.due_ms, made.bucket)

    def as_given(self, one: Stored) -> Stored:
        """A message as its tenant sees it."""
        if not self.tenant:
            return one
        return replace(
            one,
            id=self.given(one.id),
            tenant="",
            destination=self.text(one.destination),
            reason=one.reason and self.text(one.reason),
            last_error=one.last_error and self.text(one.last_error),
        )

    def life(self, life: RecordedLife) -> RecordedLife:
        """What the ledger knows, as its tenant sees it."""
        for call in life.calls:
            call.destination, call.error = self.text(call.destination), self.text(call.error)
        for step in life.transitions:
            step.error = self.text(step.error)
        return life

    def following(self, cursor: Cursor | None) -> Cursor | None:
        """The cursor of a page, which may be another's message: then the place of its own next.

        All its ids begin alike, so among those of one score they are side by side.
        """
        if cursor is None or cursor[1].startswith(self.prefix):
            return cursor
        score, id = cursor
        return (score, self.prefix) if id < self.prefix else (math.nextafter(score, math.inf), "")


class TenantClient(Tenancy):
    """The calls of `AsyncClient` that a tenant's tokens may make."""

    def __init__(self, client: AsyncClient, tenant: str) -> None:
        super().__init__(tenant)
        self._client = client

    @property
    def kinds(self) -> Mapping[str, str]:
        """Name -> kind of each broker that messages may name."""
        return self._client.kinds

    async def schedule(
        self,
        destination: str,
        body: bytes | str | None,
        *,
        on_conflict: str = OnConflict.FAIL,
        **fields: Any,
    ) -> Receipt:
        message = Message(destination, body, **fields)
        return await self.schedule_message(message, on_conflict=on_conflict)

    async def schedule_message(
        self, message: Message, *, on_conflict: str = OnConflict.FAIL
    ) -> Receipt:
        own = msgspec.structs.replace(message, tenant=self.tenant)
        try:
            made = await self._client.schedule_message(own, on_conflict=on_conflict)
        except MessageConflict as exc:
            raise self._own(exc) from None
        return self.receipt(made)

    async def schedule_each(
        self, messages: Iterable[Message], *, on_conflict: str = OnConflict.FAIL
    ) -> list[Receipt | Exception]:
        own = [msgspec.structs.replace(one, tenant=self.tenant) for one in messages]
        found = await self._client.schedule_each(own, on_conflict=on_conflict)
        return [self.receipt(one) if isinstance(one, Receipt) else self._own(one) for one in found]

    def _own(self, exc: Exception) -> Exception:
        if isinstance(exc, MessageConflict):
            return MessageConflict(exc.code, exc.field, self.text(exc.detail))
        return exc

    async def get(self, id: str, **of: Any) -> Stored | None:
        found: Stored | None = await self.verb("get")(id, **of)
        return found

    async def page(self, state: State, asked: Any, conditions: Conditions) -> Page:
        """A page as `Requests.page` gives it; asked: its other arguments."""
        own = replace(
            conditions,
            id_prefix=self.prefix + conditions.id_prefix,
            place=conditions.place and of_tenant(conditions.place, self.tenant),
        )
        page = await self._client.run(
            lambda calls: questions.page(calls, state, *asked, partial=True, conditions=own)
        )
        items = [self.as_given(one) for one in page.items]
        return page._replace(items=items, cursor=self.following(page.cursor))

    async def select(self, selection: Selection) -> AsyncIterator[list[Selected]]:
        """As `AsyncClient.select`; what it finds is named as in the store, for the verbs below."""
        place = selection.place and of_tenant(selection.place, self.tenant)
        prefix = self.prefix + selection.id_prefix
        async for page in self._client.select(replace(selection, id_prefix=prefix, place=place)):
            yield page

    def verb(self, name: str) -> Callable[..., Awaitable[Any]]:
        """The verb with this name in the client's table, as `dead.kick`; the same arguments."""
        method = attrgetter(name)(self._client)
        stored = self._STORED[ROWS[name].subject]
        own = {"tenant": self.tenant} if name == "recurring.add" else {}

        async def run(*arguments: Any, **named: Any) -> Any:
            subject = [stored(self, one) for one in arguments[:1]]
            try:
                found = await method(*subject, *arguments[1:], **own, **named)
            except MessageConflict as exc:
                raise self._own(exc) from None
            return self._given(found)

        return run

    def _given(self, found: Any) -> Any:
        """An answer as its tenant sees it; of a list of definitions its own."""
        if isinstance(found, list):
            return [self._given(one) for one in found if self._is_own(one)]
        if isinstance(found, ReceivedMessage):
            return msgspec.structs.replace(found, id=self.given(found.id))
        if isinstance(found, Receipt):
            return self.receipt(found)
        if isinstance(found, Recurring):
            return self._definition(found)
        return self.as_given(found) if isinstance(found, Stored) else found

    def _is_own(self, one: Any) -> bool:
        return not isinstance(one, Recurring) or one.name.startswith(self.prefix)

    def _definition(self, one: Recurring) -> Recurring:
        definition = one.definition and msgspec.structs.replace(
            one.definition,
            name=one.definition.given_name,
            destination=self.text(one.definition.destination),
        )
        name, error = self.given(one.name), self.text(one.error)
        return one._replace(name=name, definition=definition, error=error)

    def _named(self, messages: Iterable[Named]) -> list[Named]:
        return [self.in_store(one) if isinstance(one, str) else one for one in messages]

    def _received(self, items: Items) -> list[tuple[str, str]]:
        return [(self.prefix + id, receipt) for id, receipt in named(items)]

    # By what the first argument of a verb is: what the store calls that.
    _STORED: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = {
        "id": Tenancy.in_store,
        "messages": _named,
        "items": _received,
        "topic": Tenancy.topic,
        "name": lambda own, name: own.prefix + check_name(name),
        "": lambda own, other: other,
    }


def verb_of(client: AsyncClient | TenantClient, name: str) -> Callable[..., Awaitable[Any]]:
    """The verb with this name in the client's table, as `dead.kick`."""
    if isinstance(client, TenantClient):
        return client.verb(name)
    found: Callable[..., Awaitable[Any]] = attrgetter(name)(client)
    return found
