"""A server in a container of a running Docker engine, bound to a loopback port of this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

from tests.rigs.waiting import until
from tests.servers.process import LOOPBACK, free_port


class Container:
    """One container.

    container_port: the port inside; None: the same number as outside.
    is_ready, url_of: called with the port outside.
    environment: called with the port outside; variables for the container.
    """

    def __init__(
        self,
        image: str,
        container_port: int | None,
        *,
        is_ready: Callable[[int], bool],
        url_of: Callable[[int], str],
        environment: Callable[[int], Mapping[str, str]] = lambda port: {},
    ) -> None:
        self.image = image
        self.port = free_port()
        self.url = url_of(self.port)
        self._container_port = self.port if container_port is None else container_port
        self._is_ready = is_ready
        self._environment = environment(self.port)

    def __enter__(self) -> Self:
        # Imported here: the package is slow to import, and most runs have no Docker engine.
        from testcontainers.core.container import DockerContainer

        self._container = DockerContainer(self.image)
        for name, value in self._environment.items():
            self._container.with_env(name, value)
        # with_bind_ports would listen on every address of this machine.
        self._container.ports[f"{self._container_port}/tcp"] = (LOOPBACK, self.port)
        self._container.start()
        until(lambda: self._is_ready(self.port), f"{self.image} is up")
        return self

    def __exit__(self, *exc: object) -> None:
        self._container.stop()
