"""B23: the console's pages: how long a request waits, and when a browser has painted them.

    python -m bench.console [MESSAGES] [RUNS]

Messages fall due throughout the next six hours, to two destinations. /health/live is the least
that the same server can answer, in the same run. A browser opens each page with nothing cached, and
again with its files kept; the figure is the first contentful paint, the browser's own.
"""

from __future__ import annotations

import http.client
import shutil
import sys
import time
from statistics import median

from playwright.sync_api import Browser, sync_playwright

from bench.horizon import fill
from bench.http import serve_api, serving
from bench.rig import Bench, Table, open_bench, open_redis
from delaybridge.settings.settings import Settings

PATHS = ("/health/live", "/", "/messages?limit=50", "/messages?limit=500", "/horizon?range=1m",
         "/horizon?range=1h", "/horizon?range=1d", "/horizon?range=30d", "/dead", "/destinations",
         "/buckets", "/v1/horizon?for=30d&step=1h")  # fmt: skip
PAINTED = ("/", "/messages?limit=500", "/horizon")
_APART_S = 1.1  # a look is shared for a second
# Not page.wait_for_function: it evaluates a string in the page, which the pages do not allow.
_PAINT = """() => new Promise(found => new PerformanceObserver(list => {
  const [entry] = list.getEntriesByName("first-contentful-paint");
  if (entry) found(entry.startTime);
}).observe({ type: "paint", buffered: true }))"""


def answered_ms(port: int, path: str) -> float:
    """Until the whole answer is there, over a connection that is open."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    began_s = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    took_ms = (time.perf_counter() - began_s) * 1e3
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}")
    return took_ms


def painted_ms(program: Browser, url: str, apart_s: float) -> tuple[float, float]:
    """The first contentful paint with nothing cached, and again."""
    context = program.new_context(viewport={"width": 1280, "height": 800})
    page, found = context.new_page(), []
    for _ in range(2):
        page.goto(url)
        found.append(float(page.evaluate(_PAINT)))
        time.sleep(apart_s)
    context.close()
    return found[0], found[1]


def settings_of(bench: Bench) -> Settings:
    """A server for this namespace."""
    given = {"redis": {"url": bench.redis_url}, "namespace": bench.namespace}
    return Settings.load(overrides={**given, "brokers": {"memory": "memory://"}})


def main(count: int = 100_000, runs: int = 5) -> None:
    """Print the table."""
    out = Table(f"Console: {count:,} messages pending; target: an answer < 300 ms, paint < 500 ms")
    apart_s = _APART_S if runs > 1 else 0.0
    with open_redis() as redis, open_bench(redis.url, memory="memory://") as bench:
        fill(bench, count)
        with serving(serve_api, settings_of(bench)) as (_, port):
            for path in PATHS:
                taken = []
                for _ in range(runs + 1):
                    taken.append(answered_ms(port, path))
                    time.sleep(apart_s)
                warm = sorted(taken[1:])
                out.line(path, f"{median(warm):.1f} ms", f"most {warm[-1]:.1f} ms")
            chromium = shutil.which("chromium")
            with sync_playwright() as driver:
                program = driver.chromium.launch(
                    executable_path=chromium, args=["--no-sandbox"], headless=True
                )
                painted_ms(program, f"http://127.0.0.1:{port}/docs", 0)  # its own start
                for path in PAINTED:
                    url = f"http://127.0.0.1:{port}{path}"
                    found = [painted_ms(program, url, apart_s) for _ in range(runs)]
                    first, again = (median(each) for each in zip(*found, strict=True))
                    out.line(f"paint {path}", f"{first:.0f} ms", f"again {again:.0f} ms")
                program.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
