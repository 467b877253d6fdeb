"""Public test suites of AMQP clients, on RabbitMQ itself and then through the front.

`python -m tests.suites pika=FOLDER bunny=FOLDER` runs the suites of these checkouts twice, without
a change to them, and prints how many tests passed, failed and were skipped, and each test that is
more red through the front than direct: exit code 1 if there is one. The suites want port 5672 of
this machine, so all runs in a network namespace of its own; this takes root.

`--python FILE`: an interpreter that has what the suites of Python clients require. Node's and
Ruby's find their libraries where the environment says. `--only direct` or `--only front`.
`--delayed`: through the front each exchange that a suite declares becomes a delayed one.
`--plugin FOLDER`: so they do direct, too, on the RabbitMQ with the delayed-message plugin in this
folder, which is as `tests.servers.rabbitmq` makes its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tests.rigs.waiting import until
from tests.servers.process import LOOPBACK, accepts
from tests.servers.rabbitmq import RabbitMQNode, rabbitmq_url_of, speaks_amqp
from tests.servers.redis import RedisServer

ROOT = Path(__file__).parents[1]
PORT = 5672  # where the suites look for their broker
CONFIG = (  # the plugin of the management port, and room for the big messages of old days
    f"management.tcp.ip = {LOOPBACK}\nmanagement.tcp.port = 15672\nmax_message_size = 134217728\n"
)
DOCKER_PORT = 2375
DELAYED = ROOT / "tests" / "clients" / "delayed"  # what changes the clients' declares
INSIDE = "DELAYBRIDGE_TEST_SUITES_INSIDE"
TIMEOUT_S = 2400
PYTEST = ("{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml={report}")


class Suite(NamedTuple):
    """How a checkout's tests that need a broker are run; those that want TLS are left out."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = {}
    needs_users: bool = False


SUITES = {
    "pika": Suite(
        (*PYTEST, "-o", "python_files=*_test.py *_tests.py", "tests/acceptance"),
    ),
    "amqplib": Suite(
        (
            *("node", "--test", "--test-timeout=20000", "--test-reporter=junit"),
            *("--test-reporter-destination={report}", "test/channel_api.test.js"),
            "test/callback_api.test.js",
        ),
        {"URL": f"amqp://{LOOPBACK}"},
    ),
    "bunny": Suite(
        (
            *("rspec", "--require", "rspec/retry", "--require", "rspec_junit_formatter"),
            *("--format", "RspecJunitFormatter", "--out", "{report}", "spec/higher_level_api"),
        ),
        {"CI": "true"},  # as its authors run it
        needs_users=True,
    ),
    "aio-pika": Suite(
        (*PYTEST, "--ignore=tests/test_amqps.py", "tests"),
        {"DOCKER_HOST": f"tcp://{LOOPBACK}:{DOCKER_PORT}"},
    ),
    "py-amqp": Suite((*PYTEST, "-E", "rabbitmq", "-k", "not tls", "t/integration")),
    "kombu": Suite((*PYTEST, "-E", "py-amqp", "t/integration/test_py_amqp.py")),
}


def main(arguments: list[str]) -> int:
    """Run the suites that the arguments name; 1 if one is more red through the front."""
    wanted = _parsed(arguments)
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "yes"
        lives = 'ip link set lo up && exec "$@"'
        again = [sys.executable, "-m", "tests.suites", *arguments]
        os.execvp("unshare", ["unshare", "--net", "sh", "-ec", lives, "sh", *again])
    results: dict[str, dict[str, dict[str, str]]] = {}
    for way, plugin in (("direct", wanted.plugin), ("front", None)):
        if wanted.only in (None, way):
            delays = plugin is not None or (way == "front" and wanted.delayed)
            for name, folder in wanted.suites:
                with broker(SUITES[name], through_front=way == "front", plugin=plugin):
                    variables = environment(SUITES[name], folder, delays=delays)
                    found = outcomes(name, folder, wanted.python, variables)
                results.setdefault(name, {})[way] = found
                say(f"{name} {way}: {_counts(found)}")
    return report(results)


def environment(suite: Suite, folder: Path, *, delays: bool) -> dict[str, str]:
    """Of the suite's process. delays: each exchange that it declares becomes a delayed one."""
    path = f"{DELAYED}{os.pathsep}{folder}" if delays else str(folder)
    preloaded = {
        "NODE_OPTIONS": f"--require {DELAYED / 'delayed.js'}",
        "RUBYOPT": f"-r {DELAYED / 'delayed.rb'}",
    }
    return {**os.environ, "PYTHONPATH": path, **suite.environment, **(preloaded if delays else {})}


def report(results: Mapping[str, Mapping[str, Mapping[str, str]]]) -> int:
    """Print the table, then what differs; 1 if a test is more red through the front."""
    say("\n| suite | direct: passed, failed, skipped | through the front |\n|---|---|---|")
    for name, ways in results.items():
        say(f"| {name} | {_counts(ways.get('direct', {}))} | {_counts(ways.get('front', {}))} |")
    is_worse = False
    for name, ways in results.items():
        if len(ways) == 2:
            for test in sorted(ways["direct"].keys() | ways["front"].keys()):
                before, after = (ways[way].get(test, "not run") for way in ("direct", "front"))
                if before != after:
                    is_worse |= before == "passed" or after == "failed"
                    say(f"{name}: {test}: direct {before}, front {after}")
    return int(is_worse)


@contextmanager
def broker(suite: Suite, *, through_front: bool, plugin: Path | None) -> Iterator[None]:
    """RabbitMQ at the port that suites expect, or the front there, and RabbitMQ elsewhere."""
    direct = "" if through_front else f"listeners.tcp.suites = {LOOPBACK}:{PORT}\n"
    with ExitStack() as site:
        node = RabbitMQNode(direct + CONFIG, root=plugin)
        plugins = [
            "rabbitmq_management",
            *(["rabbitmq_delayed_message_exchange"] if plugin else []),
        ]
        (node.folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        site.enter_context(node)
        if suite.needs_users:
            add_users(node)
        if "DOCKER_HOST" in suite.environment:
            site.enter_context(docker_engine())
        if through_front:
            vhosts = ["/", *(["bunny_testbed"] if suite.needs_users else [])]
            site.enter_context(front(node.port, site.enter_context(RedisServer()).url, vhosts))
        until(lambda: speaks_amqp(PORT) and accepts(15672), "a broker at the suites' port")
        yield


@contextmanager
def front(port: int, redis: str, vhosts: Sequence[str]) -> Iterator[None]:
    """`delaybridge front` as the documentation starts it, before the broker at the port."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "delaybridge.toml"
        address = rabbitmq_url_of(port).rpartition("/")[0]
        brokers = "".join(
            f'vhost{number} = "{address}/{quote(vhost, safe="")}"\n'
            for number, vhost in enumerate(vhosts)
        )
        settings.write_text(f'[redis]\nurl = "{redis}"\n[brokers]\n{brokers}')
        settings.chmod(0o600)
        listen = ("--listen", f"{LOOPBACK}:{PORT}", "--broker", "vhost0")
        command = [sys.executable, "-m", "delaybridge", "--config", str(settings), "front", *listen]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def outcomes(name: str, folder: Path, python: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Test -> `passed`, `failed` or `skipped`, as the suite's own runner reports them."""
    with tempfile.TemporaryDirectory() as place:
        filled = {"report": f"{place}/report.xml", "python": python}
        with Path(f"{place}/log").open("w+") as log, contextlib.suppress(subprocess.TimeoutExpired):
            process = subprocess.Popen(
                [part.format(**filled) for part in SUITES[name].command],
                cwd=folder,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(TIMEOUT_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            if kept := os.environ.get("KEEP_LOGS"):
                log.seek(0)
                (Path(kept) / f"{name}.log").write_text(log.read())
            if not Path(filled["report"]).exists():
                log.seek(0)
                raise SystemExit(f"{name}: it ran no test\n{log.read()[-2000:]}")
        return dict(_read(Path(filled["report"])))


def _read(report_file: Path) -> Iterator[tuple[str, str]]:
    seen: Counter[str] = Counter()
    for suite, case in _cases(ET.parse(report_file).getroot(), ""):
        name = f"{suite}{case.get('classname')} {case.get('name')}"
        seen[name] += 1
        reds = [*case.findall("failure"), *case.findall("error")]
        outcome = "failed" if reds else "passed" if case.find("skipped") is None else "skipped"
        yield (name if seen[name] == 1 else f"{name} ({seen[name]})"), outcome


def _cases(node: ET.Element, path: str) -> Iterator[tuple[str, ET.Element]]:
    for child in node:
        if child.tag == "testcase":
            yield path, child
        elif child.tag == "testsuite":
            yield from _cases(child, f"{path}{child.get('name')}: ")


def add_users(node: RabbitMQNode) -> None:
    """The virtual hosts and users that Bunny's specifications name."""
    node.ctl("add_user", "bunny_gem", "bunny_password")
    node.ctl("add_user", "bunny_reader", "reader_password")
    node.ctl("add_vhost", "bunny_testbed")
    for kind in ("classic", "quorum", "stream"):
        node.ctl("add_vhost", f"bunny_dqt_{kind}", "--default-queue-type", kind)
    for vhost in ("testbed", "dqt_classic", "dqt_quorum", "dqt_stream"):
        for user in ("guest", "bunny_gem"):
            node.ctl("set_permissions", "-p", f"bunny_{vhost}", user, ".*", ".*", ".*")
    node.ctl("set_permissions", "-p", "bunny_testbed", "bunny_reader", "^---$", "^---$", ".*")


@contextmanager
def docker_engine() -> Iterator[None]:
    """A stand-in for Docker: each container that it starts is the broker which runs already."""

    class Engine(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            ports = {f"{PORT}/tcp": [{"HostPort": str(PORT)}], "5671/tcp": [{"HostPort": "5671"}]}
            body = json.dumps({"Id": "broker", "NetworkSettings": {"Ports": ports}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((LOOPBACK, DOCKER_PORT), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.suites")
    parser.add_argument("suites", nargs="+", metavar="NAME=FOLDER", type=_checkout)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--delayed", action="store_true")
    parser.add_argument("--plugin", type=Path)
    parser.add_argument("--only", choices=("direct", "front"))
    return parser.parse_args(arguments)


def _checkout(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if name not in SUITES or not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(f"one of {', '.join(SUITES)} and a folder: {text}")
    return name, Path(folder).absolute()


def _counts(results: Mapping[str, str]) -> str:
    found = Counter(results.values())
    return ", ".join(str(found[outcome]) for outcome in ("passed", "failed", "skipped"))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
