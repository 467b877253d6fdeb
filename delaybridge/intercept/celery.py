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
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from celery.app.task import Context
from kombu.exceptions import OperationalError
from kombu.serialization import loads

from delaybridge.calls import Receipt, Stored
from delaybridge.client import Client
from delaybridge.errors import MessageConflict, StoreError
from delaybridge.intercept import client_of_settings
from delaybridge.intercept.kombu import Producer
from delaybridge.message import Answer

__all__ = ["install"]

_loads: Any = loads  # untyped, as the next
_Context: Any = Context

_log = logging.getLogger("delaybridge")
# Where quorum queues are used, Celery sends to the first of RabbitMQ's delay queues; this is the
# exchange behind the last.
_NATIVE_DELAY, _NATIVE_DELIVERY = "celery_delayed_27", "celery_delayed_delivery"
_MOST_RETRIES = 20  # of one task, that a revoke looks for
_INSTALLED = "_delaybridge_installed"


def install(
    app: Celery, *, client: Client | None = None, broker: str | None = None, minimum_s: float = 0.0
) -> None:
    """Have this app's tasks with a countdown or an ETA wait in delaybridge. A second time: nothing.

    client: who stores them; by default one of the settings, shared by the process and made at the
    first delay. broker: the configured broker that is Celery's, where there are several of its
    kind. minimum_s: tasks due sooner than this are sent straight on.

    `apply_async` raises kombu's OperationalError where the store is away, as it does where the
    broker is, and nothing was sent, now or later; only where the store did not answer in time it
    may be. `revoke` cancels what is not due yet, and still tells the workers.
    """
    if getattr(app, _INSTALLED, False):
        return
    setattr(app, _INSTALLED, True)
    _Interception(app, client, broker, minimum_s).install()


class _Interception:
    def __init__(
        self, app: Any, client: Client | None, broker: str | None, minimum_s: float
    ) -> None:
        self._app, self._client, self._broker = app, client, broker
        self._minimum_s = minimum_s

    def install(self) -> None:
        amqp, control = self._app.amqp, self._app.control
        amqp.send_task_message = self._sending(amqp.send_task_message)
        control.revoke = self._revoking(control.revoke)

    @property
    def client(self) -> Client:
        return self._client or client_of_settings()

    # on the way out

    def _sending(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            eta = self._eta(message)
            if eta is None:
                return send(producer, name, message, **options)
            if getattr(options.get("exchange"), "name", None) == _NATIVE_DELAY:
                options["exchange"] = _NATIVE_DELIVERY
            task = _Task(message.headers, message.body)
            delaying = _TaskProducer(
                producer.channel, auto_declare=False, client=self.client, broker=self._broker
            )
            delaying.task = task
            return send(_Router(producer, delaying, message.body, eta), name, message, **options)

        return send_task_message

    def _eta(self, message: Any) -> datetime | None:
        """When the task is due; None if that is now, or soon enough."""
        said = message.headers.get("eta")
        if said is None and isinstance(message.body, dict):  # protocol 1
            said = message.body.get("eta")
        if not said:
            return None
        eta = said if isinstance(said, datetime) else datetime.fromisoformat(said)
        if eta.tzinfo is None:
            eta = eta.replace(tzinfo=self._app.timezone)
        return eta if (eta - datetime.now(UTC)).total_seconds() > self._minimum_s else None

    # revoke

    def _revoking(self, revoke: Callable[..., Any]) -> Callable[..., Any]:
        def revoke_and_cancel(task_id: Any, *args: Any, **kwargs: Any) -> Any:
            told = revoke(task_id, *args, **kwargs)  # first: also where the store is away
            for id in [task_id] if isinstance(task_id, str) else task_id:
                self._cancel(id)
            return told

        return revoke_and_cancel

    def _cancel(self, task_id: str) -> None:
        """Cancel whatever of the task is not due yet, and say in the result backend that it was."""
        for id in _ids_of(task_id):
            stored = self.client.get(id, key=task_id)
            if stored is not None and self.client.cancel(id, key=task_id) in (
                Answer.CANCELLED,
                Answer.CANCELLED_MAYBE_DELIVERED,
            ):
                request = self._request_of(stored)
                self._app.backend.mark_as_revoked(
                    *(task_id, "revoked", request),
                    store_result=not (request and request.ignore_result),
                )

    def _request_of(self, stored: Stored) -> Any:
        """The task's request, as far as a chord that waits for it must know of it."""
        properties, body = stored.properties, stored.body or b""
        if properties.get("body_encoding") == "base64":  # kombu's own transports
            body = b64decode(body)
        try:
            _, _, embedded = _loads(
                *(body, properties["content_type"], properties["content_encoding"]),
                accept=self._app.conf.accept_content,
            )
            return _Context({**dict(stored.headers), "chord": embedded.get("chord")})
        except Exception as exc:
            _log.debug("revoked, its message not read: %r", exc)
            return None


class _Task:
    """What names a task's message in the store."""

    def __init__(self, headers: dict[str, Any], body: Any) -> None:
        about = headers if headers.get("id") else body
        self.id: str = about["id"]
        self.retries: int = about.get("retries") or 0

    @property
    def message_id(self) -> str:
        """Another one at each retry: the message before may not be settled yet."""
        return f"{self.id}.{self.retries}" if self.retries else self.id


def _ids_of(task_id: str) -> Iterable[str]:
    yield task_id
    for retries in range(1, _MOST_RETRIES + 1):
        yield f"{task_id}.{retries}"


class _TaskProducer(Producer):
    """kombu's with delays, under the task's id."""

    task: _Task

    def store(self, client: Client, arguments: dict[str, Any]) -> Receipt:
        """Under its own id; where that is pending, Celery sends the same task twice, and so do we.

        What was never sent, and a time that is refused, ends as if the broker were away.
        """
        named = {**arguments, "id": self.task.message_id, "key": self.task.id}
        try:
            try:
                receipt = client.schedule(**named)
                if receipt.answer is not Answer.DUPLICATE:
                    return receipt
            except MessageConflict:
                pass
            return client.schedule(**{**named, "id": None})
        except StoreError as exc:
            raise OperationalError(str(exc)) from exc


class _Router:
    """A producer whose publish of one body is delayed; any other (an event) goes straight on."""

    def __init__(self, plain: Any, delaying: Producer, body: Any, eta: datetime) -> None:
        self._plain, self._delaying, self._body, self._eta = plain, delaying, body, eta

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """As kombu's."""
        if body is self._body:
            return self._delaying.publish(body, deliver_at=self._eta, **options)
        return self._plain.publish(body, **options)
