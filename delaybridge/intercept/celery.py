"""Celery with delays: `install(app)`, and no worker ever holds an ETA.

from delaybridge.intercept.celery import install

install(app)

Tasks with `countdown` or `eta` are stored, and arrive in their own queue when they are due, as the
very message that Celery would have sent. Everything else stays Celery's. It concerns the processes
that send; workers need not know of it, except for what they send themselves (`retry`).
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any

from celery import Celery
from celery.app import base, control
from celery.app.task import Context
from celery.utils.quorum_queues import detect_quorum_queues
from kombu.exceptions import OperationalError
from kombu.message import Message as Received
from kombu.serialization import prepare_accept_content
from kombu.utils.imports import symbol_by_name

from delaybridge.accept.accept import check_id
from delaybridge.client import Client
from delaybridge.errors import MessageError, StoreError, StoreUnavailable
from delaybridge.intercept import client_of_settings
from delaybridge.intercept.kombu import Producer
from delaybridge.message import Answer, Message, new_id
from delaybridge.store.keys import bucket_of
from delaybridge.store.receipts import Receipt
from delaybridge.store.steps import Steps
from delaybridge.store.stored import Stored, stored
from delaybridge.store.verbs import new_stamp

__all__ = ["install"]

_Context: Any = Context  # untyped, as the next four
_mime_types: Any = prepare_accept_content
_Received: Any = Received
_Control: Any = control.Control
_symbol_by_name: Any = symbol_by_name

_log = logging.getLogger("delaybridge")
_COPIES = 8  # of one task id, pending at once, that a revoke finds
_REVOKED_TOGETHER = 500
_INSTALLED = "_delaybridge"


def install(
    app: Celery, *, client: Client | None = None, broker: str | None = None, minimum_s: float = 0.0
) -> None:
    """Have this app's tasks with a countdown or an ETA wait in delaybridge. A second time: nothing.

    The app need not be configured yet. client: who stores them; by default one of the settings,
    shared by the process and made at the first delay. broker: the configured broker that is
    Celery's, where there are several of its kind. minimum_s: tasks due sooner are sent straight on.

    `apply_async` raises kombu's OperationalError where the store is away, as it does where the
    broker is, after as many tries as its retry policy says. Nothing was sent then, now or later;
    only where the store did not answer in time it may be. MessageError: refused (too large, too far
    ahead, a fanout); ConfigError. `revoke` cancels what is not due yet, and still tells the
    workers, whatever becomes of that; OperationalError where the store is away.
    """
    if getattr(app, _INSTALLED, None) is None:
        setattr(app, _INSTALLED, _Interception(app, client, broker, minimum_s))
    if base.detect_quorum_queues is not _detect_quorum_queues:
        base.detect_quorum_queues = _detect_quorum_queues


def _detect_quorum_queues(app: Any, driver_type: str) -> tuple[bool, str]:
    """None, for an app whose delays are ours.

    Where there are any, Celery routes a delayed task into RabbitMQ's delay queues of whole seconds:
    it refuses less than one, and warns at each send to a direct exchange.
    """
    if getattr(app, _INSTALLED, None) is not None:
        return False, ""
    found: tuple[bool, str] = detect_quorum_queues(app, driver_type)
    return found


class _Interception:
    def __init__(
        self, app: Any, client: Client | None, broker: str | None, minimum_s: float
    ) -> None:
        self._app, self._client, self._broker = app, client, broker
        self._minimum_s = minimum_s
        # Celery's own sender and control read the configuration when they are made: not now.
        made = vars(app.amqp).get("send_task_message")
        sender = cache(app.amqp._create_task_sender) if made is None else lambda: made
        app.amqp.send_task_message = self._sending(sender)
        theirs = _symbol_by_name(app.control_cls)
        app.control_cls = (
            _RevokingControl if theirs is _Control else type("Control", (_Revoking, theirs), {})
        )
        if "control" in vars(app):
            app.control.__class__ = app.control_cls

    @property
    def client(self) -> Client:
        return self._client or client_of_settings()

    # on the way out

    def _sending(self, sender: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            eta = self._eta(message)
            if eta is not None:
                producer = _TaskProducer(producer, message, eta, self.client, self._broker)
            return sender()(producer, name, message, **options)

        return send_task_message

    def _eta(self, message: Any) -> datetime | None:
        """When the task is due; None if that is now, or soon enough."""
        said = _about(message).get("eta")
        if not said:
            return None
        eta = said if isinstance(said, datetime) else datetime.fromisoformat(said)
        if eta.tzinfo is None:
            eta = eta.replace(tzinfo=self._app.timezone)
        return eta if (eta - datetime.now(UTC)).total_seconds() > self._minimum_s else None

    # revoke

    def cancel(self, task_ids: Sequence[str]) -> None:
        """Cancel whatever of the tasks is not due yet, and say in the result backend that it was.

        OperationalError where the store is away.
        """
        storable = [task_id for task_id in dict.fromkeys(task_ids) if _is_storable(task_id)]
        for first in range(0, len(storable), _REVOKED_TOGETHER):
            steps = _cancel(self.client, storable[first : first + _REVOKED_TOGETHER])
            try:
                cancelled = self.client.store.complete(steps)
            except StoreError as exc:
                raise OperationalError(str(exc)) from exc
            for task_id, message in cancelled.items():
                request = self._request_of(message)
                self._app.backend.mark_as_revoked(
                    *(task_id, "revoked", request),
                    store_result=not (request and request.ignore_result),
                )

    def _request_of(self, message: Stored) -> Any:
        """The task's request, as far as a chord that waits for it must know of it."""
        headers, properties, body = dict(message.headers), message.properties, message.body or b""
        if properties.get("body_encoding") == "base64":  # kombu's own transports
            body = b64decode(body)
        try:
            _, _, embedded = _Received(
                body=body,
                content_type=properties["content_type"],
                content_encoding=properties["content_encoding"],
                headers=headers,
                accept=_mime_types(self._app.conf.accept_content),
            ).decode()
            return _Context({**headers, "chord": embedded.get("chord")})
        except Exception as exc:
            _log.warning("revoked, but no chord is told: the message cannot be read: %r", exc)
            return None


class _Revoking:
    """What `control.revoke`, results, and the command line all end in."""

    app: Any

    def broadcast(self, command: str, arguments: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As Celery's; a revoke cancels first, and is told to the workers even if that fails."""
        interception = getattr(self.app, _INSTALLED, None)
        try:
            if interception is not None and command in ("revoke", "terminate") and arguments:
                named = arguments.get("task_id") or ()
                interception.cancel([named] if isinstance(named, str) else list(named))
        finally:
            answer = super().broadcast(command, arguments, *args, **kwargs)  # type: ignore[misc]
        return answer


class _RevokingControl(_Revoking, _Control):  # type: ignore[misc]
    """Of an app that has no control class of its own; pickled by name, as the app is."""


def _is_storable(task_id: Any) -> bool:
    with suppress(MessageError):
        return bool(check_id(task_id))
    return False


def _cancel(client: Client, task_ids: Sequence[str]) -> Steps[dict[str, Stored]]:
    """Cancel every copy of these tasks; of which one was, by task id."""
    buckets = yield from client._calls.open()
    asked = [
        (task_id, id, buckets[bucket_of(task_id.encode(), len(buckets))])
        for task_id in task_ids
        for id in _ids_of(task_id)
    ]
    rows = yield [bucket.get(id) for _, id, bucket in asked]
    found = [(*each, row) for each, row in zip(asked, rows, strict=True) if row is not None]
    answers = (
        (yield [bucket.cancel(new_stamp(), id) for _, id, bucket, _ in found]) if found else []
    )
    return {
        task_id: stored(row, bucket.number)
        for (task_id, _, bucket, row), answer in zip(found, answers, strict=True)
        if answer in (Answer.CANCELLED, Answer.CANCELLED_MAYBE_DELIVERED)
    }


def _about(message: Any) -> dict[str, Any]:
    """Where the protocol of the message has the task's id and ETA."""
    about: dict[str, Any] = message.body if isinstance(message.body, dict) else message.headers
    return about


def _ids_of(task_id: str) -> Iterable[str]:
    """The first that is free is taken: at a retry, the message before may not be settled yet."""
    yield task_id
    for number in range(1, _COPIES):
        yield f"{task_id}.{number}"


class _TaskProducer(Producer):
    """The producer that Celery chose, channel and all, as one that delays one task's message.

    Any other, an event, goes straight on.
    """

    # All else is in the dictionary that the two share: when one revives, both do.
    __slots__ = ("_broker", "_client", "_eta", "_last_id", "_plain", "_stamp", "_task")

    def __init__(
        self, plain: Any, message: Any, eta: datetime, client: Client, broker: str | None
    ) -> None:
        self.__dict__ = plain.__dict__
        self._plain, self._task, self._eta = plain, message, eta
        self._client, self._broker = client, broker
        # Kept when kombu tries again: it is the same call, and stores the task once.
        self._stamp, self._last_id = new_stamp(), new_id()

    def publish(self, body: Any, **options: Any) -> Any:
        """As kombu's."""
        if body is not self._task.body:
            return self._plain.publish(body, **options)
        if options.get("retry"):
            policy = dict(options.get("retry_policy") or {})
            others = policy.get("retry_errors") or ()
            options["retry_policy"] = policy | {"retry_errors": (*others, StoreUnavailable)}
        try:
            return super().publish(body, deliver_at=self._eta, **options)
        except StoreError as exc:
            raise OperationalError(str(exc)) from exc

    def store(self, client: Client, arguments: dict[str, Any]) -> Receipt:
        """Under the task's id; one that is pending already is sent twice, as Celery has it."""
        task_id = _about(self._task)["id"]
        for id in (*_ids_of(task_id), self._last_id):
            accepted = client.accept(Message(**{**arguments, "id": id, "key": task_id}))
            (receipt,) = client.schedule_accepted([(self._stamp, accepted)])
            if receipt.answer not in (Answer.CONFLICT, Answer.DUPLICATE):
                break
        return receipt
