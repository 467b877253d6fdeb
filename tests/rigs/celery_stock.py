"""An application of Celery without delaybridge and without workers: its queue keeps its tasks."""

from __future__ import annotations

from typing import Any

import pika
import redis
from celery import Celery
from kombu import Exchange, Queue, pools

from delaybridge import Client
from delaybridge.intercept.celery import install


class Stock:
    """An application whose queue and key prefix are named after a namespace."""

    def __init__(self, kind: str, url: str, namespace: str, queue_type: str = "classic") -> None:
        self.system = "celery-rabbitmq" if kind == "rabbitmq" else "celery-redis"
        self.kind, self.url, self.queue = kind, url, namespace
        self.prefix = "" if kind == "rabbitmq" else f"{namespace}:"
        self.broker = (
            url if kind == "rabbitmq" else f"kombu+{url}?transport.global_keyprefix={self.prefix}"
        )
        self._type = {"x-queue-type": queue_type} if kind == "rabbitmq" else {}
        self.apps = [self._app()]
        self.app = self.apps[0]

    def _app(self) -> Any:
        app: Any = Celery("stock", broker=self.url, set_as_current=False)
        app.conf.broker_transport_options = {"global_keyprefix": self.prefix} if self.prefix else {}
        exchange = Exchange(self.queue, type="direct")
        app.conf.task_queues = [Queue(self.queue, exchange, self.queue, queue_arguments=self._type)]
        app.conf.task_default_queue = self.queue
        return app

    def with_install(self, client: Client) -> Any:
        """The same application with delaybridge."""
        app = self._app()
        install(app, client=client)
        self.apps.append(app)
        return app

    def close(self) -> None:
        """Delete what it has at the broker."""
        for app in self.apps:
            app.close()
        pools.reset()
        if self.kind == "rabbitmq":
            with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
                channel = connection.channel()
                channel.queue_delete(self.queue)
                channel.exchange_delete(self.queue)
            return
        with redis.Redis.from_url(self.url) as raw:
            for key in raw.scan_iter(f"{self.prefix}*"):
                raw.delete(key)
