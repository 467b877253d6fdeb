"""Celery with delays: after `install(app)` no worker holds tasks that are not due.

from delaybridge.intercept.celery import install

install(app)

Tasks with `countdown` or `eta` are stored. When they are due they arrive in their own queue, as
exactly the message that Celery would have sent. Call it in every process that sends tasks; a worker
needs it only for tasks that it sends itself, also by `retry`.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, partial
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
from delaybridge.message import Answer, Message, OnConflict, new_id
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Receipt, Stamped
from delaybridge.store.protocol.stored import Stored, stored
from delaybridge.store.protocol.verbs import Steps, bucket_of, new_stamp

__all__ = ["install"]

_Context: Any = Context  # untyped, like the next four
_mime_types: Any = prepare_accept_content
_Received: Any = Received
_Control: Any = control.Control
_symbol_by_name: Any = symbol_by_name

_log = logging.getLogger("delaybridge")
_TAKEN = (Answer.CONFLICT, Answer.DUPLICATE, Answer.IN_FLIGHT)
_COPIES = 8  # pending copies of one task id that a revoke finds
_REVOKED_TOGETHER = 500  # tasks in one call
_INSTALLED = "_delaybridge"


def install(
    app: Celery, *, client: Client | None = None, broker: str | None = None, minimum_s: float = 0.0
) -> None:
    """Make this app's tasks with a countdown or an ETA wait in delaybridge.

    The app need not be configured yet; a second call has no effect. client: stores the tasks; by
    default one made from the settings at the first delay and shared by the whole process. broker:
    the name of Celery's broker in the settings, if several of its kind are configured. minimum_s:
    tasks due sooner than this are sent directly.

    `apply_async` then raises kombu's OperationalError while Redis does not answer, as it does while
    the broker is unavailable, after the tries of its retry policy. The task was not sent then; only
    if Redis did not answer in time, it may be stored. It raises MessageError if the task is refused
    (too large, too far ahead, a fanout), and ConfigError. `revoke` cancels tasks that are not due
    and always tells the workers as well; it raises OperationalError while Redis does not answer.
    """
    if getattr(app, _INSTALLED, None) is None:
        setattr(app, _INSTALLED, _Interception(app, client, broker, minimum_s))
    if base.detect_quorum_queues is not _detect_quorum_queues:
        base.detect_quorum_queues = _detect_quorum_queues


def _detect_quorum_queues(app: Any, driver_type: str) -> tuple[bool, str]:
    """Report no quorum queues for an app with `install`.

    If there are any, Celery sends a delayed task to RabbitMQ delay queues of whole seconds: it
    refuses less than a second, and warns at each send to a direct exchange.
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
        # Celery's own sender and control read the configuration when they are created: do it late.
        made = vars(app.amqp).get("send_task_message")
        sender = cache(app.amqp._create_task_sender) if made is None else lambda: made
        app.amqp.send_task_message = self._sending(sender)
        plain = _symbol_by_name(app.control_cls)
        app.control_cls = (
            _RevokingControl if plain is _Control else type("Control", (_Revoking, plain), {})
        )
        if "control" in vars(app):
            app.control.__class__ = app.control_cls

    @property
    def client(self) -> Client:
        return self._client or client_of_settings()

    # sending

    def _sending(self, sender: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            eta = self._eta(message)
            if eta is not None:
                producer = _TaskProducer(producer, message, eta, self.client, self._broker)
            return sender()(producer, name, message, **options)

        return send_task_message

    def _eta(self, message: Any) -> datetime | None:
        """When the task is due; None to send it directly."""
        given = _task_fields(message).get("eta")
        if not given:
            return None
        eta = given if isinstance(given, datetime) else datetime.fromisoformat(given)
        if eta.tzinfo is None:
            eta = eta.replace(tzinfo=self._app.timezone)
        return eta if (eta - datetime.now(UTC)).total_seconds() > self._minimum_s else None

    # revoking

    def cancel(self, task_ids: Sequence[str]) -> None:
        """Cancel those of the tasks that are not due, and mark them revoked in the result backend.

        OperationalError while Redis does not answer.
        """
        storable = [task_id for task_id in dict.fromkeys(task_ids) if _is_storable(task_id)]
        for first in range(0, len(storable), _REVOKED_TOGETHER):
            cancel = partial(_cancel, storable[first : first + _REVOKED_TOGETHER])
            try:
                cancelled = self.client.run(cancel)
            except StoreError as exc:
                raise OperationalError(str(exc)) from exc
            for task_id, message in cancelled.items():
                request = self._request_of(message)
                store_result = not (request and request.ignore_result)
                self._app.backend.mark_as_revoked(
                    task_id, "revoked", request, store_result=store_result
                )

    def _request_of(self, message: Stored) -> Any:
        """The fields of the task's request that a chord waiting for it needs."""
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
            _log.warning("revoked, but its chord is not notified: unreadable message: %r", exc)
            return None


class _Revoking:
    """Extends the one method that `control.revoke`, results and the command line all call."""

    app: Any

    def broadcast(self, command: str, arguments: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Send a command to the workers; before a revoke, cancel. It is sent even if that fails."""
        interception = getattr(self.app, _INSTALLED, None)
        try:
            if interception is not None and command in ("revoke", "terminate") and arguments:
                named = arguments.get("task_id") or ()
                interception.cancel([named] if isinstance(named, str) else list(named))
        finally:
            answer = super().broadcast(command, arguments, *args, **kwargs)  # type: ignore[misc]
        return answer


class _RevokingControl(_Revoking, _Control):  # type: ignore[misc]
    """Replaces the control class of an app without its own, by name: apps are pickled."""


def _is_storable(task_id: Any) -> bool:
    with suppress(MessageError):
        return bool(check_id(task_id))
    return False


def _cancel(task_ids: Sequence[str], calls: Calls) -> Steps[dict[str, Stored]]:
    """Cancel every copy of these tasks; returns a cancelled message of each, by task id."""
    buckets = yield from calls.open()
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


def _at_once(message: Stamped, calls: Calls) -> Steps[list[Receipt]]:
    """Schedule it without waiting for a copy that is being delivered."""
    return calls.schedule([message], OnConflict.FAIL, waits=False)


def _task_fields(message: Any) -> dict[str, Any]:
    """The part of a message that holds the task's id and ETA: its body (protocol 1) or headers."""
    fields: dict[str, Any] = message.body if isinstance(message.body, dict) else message.headers
    return fields


def _ids_of(task_id: str) -> Iterable[str]:
    """Ids to store a task under, tried in order: at a retry the earlier copy may be pending."""
    yield task_id
    for number in range(1, _COPIES):
        yield f"{task_id}.{number}"


class _TaskProducer(Producer):
    """Wraps the producer that Celery chose, and delays the message of one task.

    Other messages, such as events, are published by the wrapped producer.
    """

    # All other attributes are in the dictionary that both share, so that a reconnect reaches both.
    __slots__ = ("_broker", "_client", "_eta", "_last_id", "_plain", "_stamp", "_task")

    def __init__(
        self, plain: Any, message: Any, eta: datetime, client: Client, broker: str | None
    ) -> None:
        self.__dict__ = plain.__dict__
        self._plain, self._task, self._eta = plain, message, eta
        self._client, self._broker = client, broker
        # The same for every try of kombu, so that the store recognizes the call and stores it once.
        self._stamp, self._last_id = new_stamp(), new_id()

    def publish(self, body: Any, **options: Any) -> Any:
        """Delay the message of the task; publish any other."""
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
        """Store under the task's id. One with an earlier copy is sent twice, as by Celery."""
        task_id = _task_fields(self._task)["id"]
        for id in (*_ids_of(task_id), self._last_id):
            accepted = client.accept(Message(**{**arguments, "id": id, "key": task_id}))
            (receipt,) = client.run(partial(_at_once, (self._stamp, accepted)))
            if receipt.answer not in _TAKEN:
                break
        return receipt
