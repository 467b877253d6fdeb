"""A Docker engine as far as the tests need one: its container is a real Redis on the port asked."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.servers.process import LOOPBACK
from tests.servers.redis import RedisServer

VERSION = {"ApiVersion": "1.44", "MinAPIVersion": "1.24", "Version": "28.0", "Os": "linux"}


class FakeEngine:
    """Answers at `host`, as DOCKER_HOST takes it. asked: image and bindings of each container."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.removed = 0
        self._redis: RedisServer | None = None
        self._server = ThreadingHTTPServer((LOOPBACK, 0), self._handler())
        self.host = f"tcp://{LOOPBACK}:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and JSON of one request."""
        if path in ("/_ping", "/version", "/info"):
            return 200, {**VERSION, "ServerVersion": VERSION["Version"], "ID": "fake"}
        if method == "POST" and path == "/containers/create":
            self.asked.append((body["Image"], body["HostConfig"]["PortBindings"]))
            return 201, {"Id": "c1", "Warnings": []}
        if method == "POST" and path == "/containers/c1/start":
            self._start()
            return 204, None
        if method == "DELETE":
            self.removed += 1
            if self._redis is not None:
                self._redis.close()
            return 204, None
        if path.startswith("/images/") or path == "/containers/c1/json":
            return 200, {"Id": "c1", "State": {"Status": "running"}, "Config": {"Image": "redis"}}
        return 404, {"message": f"{method} {path} is not known here"}

    def _start(self) -> None:
        (((binding,),),) = ([*bindings.values()] for _, bindings in self.asked[-1:])
        assert binding["HostIp"] == LOOPBACK, "no other address of this machine"
        self._redis = RedisServer()
        self._redis.port = int(binding["HostPort"])
        self._redis.start()

    def _handler(engine) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size) or b"{}")
                path = re.sub(r"^/v[\d.]+", "", self.path).partition("?")[0]
                status, found = engine.answer(self.command, path, body)
                text = b"" if found is None else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Api-Version", VERSION["ApiVersion"])
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            do_GET = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_: object) -> None:
                """Quiet."""

        return Handler
