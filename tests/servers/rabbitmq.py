"""RabbitMQ for tests: a private node of the newest release, in a folder with a small Debian.

`install` makes the folder once with debootstrap; all nodes share it read-only. A node runs chrooted
in it, in its own process and mount namespaces: its data are mounted on /srv, and everything that it
started, such as the port mapper epmd, ends with it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.servers import debian
from tests.servers.docker import Container
from tests.servers.folders import cache_folder, locked
from tests.servers.process import LOOPBACK, ServerProcess, free_port
from tests.servers.sources import Source, docker_answers, from_environment, serve, variable

IMAGE = "rabbitmq:4.3"
CONTAINER_PORT = 5672
SUITE = "forky"  # the first Debian release with RabbitMQ 4.3
BIN = "usr/lib/rabbitmq/bin"
NODE_NAME = "test@localhost"
DATA_IN_ROOT = "/srv"
REPLY_TIMEOUT_S = 2.0
CTL_TIMEOUT_S = 240.0
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD_FRAME = b"\x01"  # begins Connection.Start, the answer of a broker that is up

# epmd is not a daemon here: it stays in the process group and dies with the node, which replaces
# the shell.
EPMD = f'epmd -address {LOOPBACK} -port "$ERL_EPMD_PORT"'
RUN_NODE = f"setpriv --pdeathsig KILL {EPMD} & exec /{BIN}/rabbitmq-server"
# Arguments: data folder, root folder, command...
IN_ROOT = 'mount --bind "$1" "$2/srv"; root=$2; shift 2; exec chroot "$root" "$@"'


class RabbitMQNode(ServerProcess):
    """A private RabbitMQ node with the user guest; its definitions and queues survive `restart`.

    config: lines appended to its rabbitmq.conf. root: the root folder of the installation; `/` for
    a RabbitMQ installed on this machine. Default: the folder that `install` made, or `/`.
    """

    name = "rabbitmq"

    def __init__(self, config: str = "", *, root: Path | None = None) -> None:
        super().__init__()
        self.root = self.found(root or built_root() or machine_root(), "rabbitmq")
        self.distribution_port = free_port()
        self.mapper_port = free_port()
        listen = f"listeners.tcp.local = {LOOPBACK}:{self.port}"
        (self.folder / "rabbitmq.conf").write_text(
            f"{listen}\nlog.file = false\nlog.console = true\nlog.console.level = warning\n{config}"
        )
        (self.folder / "enabled_plugins").write_text("[].\n")

    @property
    def url(self) -> str:
        return rabbitmq_url_of(self.port)

    @property
    def version(self) -> str:
        return installed_version(self.root)

    def command(self) -> Sequence[str]:
        return self._in_root(["/bin/sh", "-ec", RUN_NODE])

    def environment(self) -> Mapping[str, str]:
        """Folders, ports and addresses that isolate the node from all others."""
        data = DATA_IN_ROOT if self._is_chrooted else str(self.folder)
        loopback_only = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "PATH": os.environ["PATH"],
            "HOME": data,  # for the Erlang cookie
            "LC_ALL": "C.UTF-8",
            "RABBITMQ_NODENAME": NODE_NAME,
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_MNESIA_BASE": f"{data}/data",
            "RABBITMQ_LOG_BASE": f"{data}/logs",
            "RABBITMQ_CONFIG_FILE": f"{data}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{data}/enabled_plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback_only,
            "RABBITMQ_CTL_ERL_ARGS": loopback_only,
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(self.mapper_port),
            "RUNNING_UNDER_SYSTEMD": "true",  # the start script then execs the VM
        }

    def is_ready(self) -> bool:
        return speaks_amqp(self.port)

    def ctl(self, *arguments: str, timeout_s: float = CTL_TIMEOUT_S) -> str:
        """Run `rabbitmqctl` and return what it prints; raises if it fails. Takes about a second."""
        run = subprocess.run(
            self._in_root([f"/{BIN}/rabbitmqctl", *arguments]),
            env=dict(self.environment()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {run.stdout}")
        return run.stdout

    @property
    def _is_chrooted(self) -> bool:
        return self.root != Path("/")

    def _in_root(self, command: Sequence[str]) -> Sequence[str]:
        if not self._is_chrooted:
            return command
        namespaces = ["--mount", "--pid", "--fork", "--kill-child=KILL"]
        # /proc must be the new namespace's, since the node reads its own memory use there. Never
        # mount /dev: removing the folder would remove its files.
        proc = f"--mount-proc={self.root}/proc"
        inside = ["sh", "-ec", IN_ROOT, "sh", str(self.folder), str(self.root), *command]
        return ["unshare", *namespaces, proc, *inside]


def rabbitmq_url_of(port: int) -> str:
    return f"amqp://guest:guest@{LOOPBACK}:{port}/%2F"


def speaks_amqp(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=REPLY_TIMEOUT_S) as connection:
            connection.sendall(PROTOCOL_HEADER)
            return connection.recv(1) == METHOD_FRAME
    except OSError:
        return False


def built_root() -> Path | None:
    """The folder that `install` made, if it exists and this process may run it."""
    root = cache_folder() / "rabbitmq"
    return root if debian.is_debian_root() and (root / BIN).exists() else None


def machine_root() -> Path | None:
    """`/`, if RabbitMQ is installed on this machine and its port mapper is on PATH."""
    return Path("/") if (Path("/") / BIN).exists() and shutil.which("epmd") else None


def installed_version(root: Path) -> str:
    prefix = "rabbitmq_server-"
    found = next((root / "usr/lib/rabbitmq/lib").glob(f"{prefix}*"), None)
    return found.name.removeprefix(prefix) if found else "of unknown version"


def install() -> None:
    """Build the folder from the Debian archive, once; it appears only when it is complete."""
    root = cache_folder() / "rabbitmq"
    with locked(cache_folder() / "rabbitmq.lock"):
        if root.exists() or not debian.is_debian_root():
            return
        debian.install("debootstrap")
        with tempfile.TemporaryDirectory(prefix="rabbitmq-", dir=cache_folder()) as unfinished:
            _build(Path(unfinished) / "root")
            (Path(unfinished) / "root").rename(root)


def _build(root: Path) -> None:
    # debootstrap of an older Debian has no script for this suite; the one for sid is the same.
    script = "/usr/share/debootstrap/scripts/sid"
    what = ["--variant=minbase", "--include=rabbitmq-server", SUITE, str(root)]
    # The mount namespace ensures that an interrupted build leaves no mount in the folder.
    subprocess.run(
        ["unshare", "--mount", "debootstrap", *what, debian.mirror(), script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    # Without this file the node hangs for ever, and logs nothing.
    (root / "etc/hosts").write_text(f"{LOOPBACK} localhost\n")
    for package in (root / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()


def sources() -> Iterator[Source]:
    yield from from_environment("rabbitmq")
    if docker_answers():
        yield Source(what=f"{IMAGE} (docker)", open=_container)
    for root, origin in ((built_root(), "private node"), (machine_root(), "installed here")):
        if root is not None:
            yield _private(root, origin)


def _private(root: Path, origin: str) -> Source:
    what = f"{installed_version(root)} ({origin})"
    return Source(what=what, open=lambda: RabbitMQNode(root=root))


def _container() -> Container:
    return Container(IMAGE, CONTAINER_PORT, is_ready=speaks_amqp, url_of=rabbitmq_url_of)


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    """A RabbitMQ that the whole session shares; name exchanges and queues after `namespace`."""
    yield from serve("rabbitmq", sources())


@pytest.fixture(scope="session")
def plugin_rabbitmq_url() -> Iterator[str]:
    """A RabbitMQ with the delayed-message plugin, where one can be had; else the test is skipped.

    Only a running one: the plugin is archived, and no release that `install` builds can load it.
    """
    name = "plugin_rabbitmq"
    source = next(from_environment(name), None)
    if source is None:
        pytest.skip(f"set {variable(name)} to a RabbitMQ with the delayed-message plugin")
    with source.open() as server:
        yield server.url
