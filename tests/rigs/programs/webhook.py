"""A receiver of webhooks: keeps what is posted to a path that was made before, in files.

    python webhook.py PORT FOLDER

PUT /PATH makes a path, with a behaviour in its body: JSON with `status` (of the answers),
`headers`, `first` (only for so many POSTs), `wait_s`, `bytes` of the answer, `drip_s` between its
parts. GET /PATH tells all it got.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiohttp import web

MOST_BYTES = 8 * 2**20


class Receiver:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[Path, tuple[dict[str, Any], int]] = {}  # behaviour, number of POSTs

    def file(self, request: web.Request) -> Path:
        return self.folder / quote(request.path, safe="")

    async def put(self, request: web.Request) -> web.Response:
        file = self.file(request)
        file.write_text(json.dumps(await self.behaviour(request)) + "\n")
        self.known.pop(file, None)
        return web.Response()

    async def behaviour(self, request: web.Request) -> dict[str, Any]:
        text = await request.text()
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def written(self, file: Path) -> tuple[dict[str, Any], int]:
        """Before a restart of this process, too."""
        first, *posted = file.read_text().splitlines()
        return json.loads(first), len(posted)

    async def get(self, request: web.Request) -> web.Response:
        file = self.file(request)
        if not file.exists():
            return web.Response(status=404)
        lines = file.read_text().splitlines()[1:]
        return web.Response() if request.method == "HEAD" else web.json_response(lines)

    async def post(self, request: web.Request) -> web.StreamResponse:
        file = self.file(request)
        if not file.exists():
            return web.Response(status=404, text="no such path")
        body = await request.read()
        behaves, count = self.known.get(file) or self.written(file)
        self.known[file] = behaves, count + 1
        got = {
            "body": base64.b64encode(body).decode(),
            "headers": [(k.decode(), v.decode()) for k, v in request.raw_headers],
            "query": request.query_string,
            "at_ms": time.time_ns() // 1_000_000,
        }
        with file.open("a") as stream:
            stream.write(json.dumps(got) + "\n")
        if count >= behaves.get("first", sys.maxsize):
            return web.Response()
        await asyncio.sleep(behaves.get("wait_s", 0))
        answer = web.StreamResponse(
            status=behaves.get("status", 200), headers=behaves.get("headers")
        )
        await answer.prepare(request)
        left = behaves.get("bytes", 0)
        while left > 0:
            await answer.write(b"x" * min(left, 65536))
            left -= 65536
            await asyncio.sleep(behaves.get("drip_s", 0))
        return answer


def main(port: int, folder: Path) -> None:
    receiver = Receiver(folder)
    app = web.Application(client_max_size=MOST_BYTES)
    app.router.add_route("PUT", "/{path:.*}", receiver.put)
    app.router.add_route("GET", "/{path:.*}", receiver.get)
    app.router.add_route("HEAD", "/{path:.*}", receiver.get)
    app.router.add_route("POST", "/{path:.*}", receiver.post)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None, shutdown_timeout=0.1)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
