"""Kafka for tests: a private node of Apache Kafka from its Maven jars, controller and broker.

Without Java, librdkafka's mock cluster is the stand-in. It is good enough for contracts and error
paths, but not for claims about latency or exactly-once delivery.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.servers import debian
from tests.servers.docker import Container
from tests.servers.folders import cache_folder, locked
from tests.servers.process import LOOPBACK, ServerProcess, accepts, free_port
from tests.servers.sources import Source, docker_answers, from_environment, serve

POM = Path(__file__).with_name("kafka.pom.xml")
IMAGE = "apache/kafka:4.3.1"
CLASSES, STORAGE = "classes.jsa", "storage"  # `install` prepares these, so that nodes start faster
CLUSTER_ID = "delaybridge-tests-0000"  # Kafka requires 22 characters of base64
REPLY_TIMEOUT_S = 2.0

# One node, and one partition for each internal topic, so that it is small and starts quickly.
SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",  # else records of tests with an old timestamp go whenever it looks
    "log.cleaner.dedupe.buffer.size": "4194304",
    # After a kill, a node waits until its former session as a broker has expired.
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
}
# A test's node lives for seconds, too short to gain from the optimizing compiler.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def plain_login(user: str, password: str) -> dict[str, str]:
    """Properties of a listener named LOGIN, on which clients log in as this user."""
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "LOGIN:SASL_PLAINTEXT",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain."
        f'PlainLoginModule required user_{user}="{password}";',
    }


class KafkaNode(ServerProcess):
    """A private Apache Kafka; topics, offsets and transactions survive `restart` and `kill`.

    properties: added to its server.properties; they override the defaults. options: command line
    options of Java. The default is for short-lived nodes; measurements pass `()`.
    """

    name = "kafka"

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        libs: Path | None = None,
        options: Sequence[str] = SHORT_LIVED,
    ) -> None:
        super().__init__()
        self.libs = self.found(libs or cached_libs() or path_libs(), "kafka")
        self._options = options
        self._properties = self.folder / "server.properties"
        wanted = {**SINGLE_NODE, **self._addresses(), **(properties or {})}
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in wanted.items()))

    @property
    def url(self) -> str:
        return kafka_url_of(self.port)

    @property
    def version(self) -> str:
        return libs_version(self.libs)

    def command(self) -> Sequence[str]:
        archive = ready_folder(self.libs) / CLASSES
        shared = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
        return self._java(*shared, *self._options, "kafka.Kafka", str(self._properties))

    def is_ready(self) -> bool:
        return serves_metadata(self.port)

    def start(self) -> Self:
        """Format its storage if it has none, start the node, and return when it answers."""
        self.format()
        return super().start()

    def format(self) -> None:
        """Format its storage, if it has none; copies the one that `install` formatted, if any."""
        data, formatted = self.folder / "data", ready_folder(self.libs) / STORAGE
        if data.exists():
            return
        is_ours = f"log.dirs={data}\n" in self._properties.read_text()
        if formatted.exists() and is_ours:  # a test may have its storage elsewhere
            shutil.copytree(formatted, data)
            return
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(self._properties)]
        command = self._java("kafka.tools.StorageTool", *arguments)
        with self.log.open("ab") as log:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)

    def add_listener(self, listener: str, *lines: str, advertised: str = "") -> None:
        """Add a listener for clients; call it before the first start. lines: further settings.

        advertised: where clients are to connect instead, such as a proxy.
        """
        added = {"listeners": listener, "advertised.listeners": advertised or listener}
        kept = [
            f"{line},{added[name]}" if (name := line.partition("=")[0]) in added else line
            for line in self._properties.read_text().splitlines()
        ]
        self._properties.write_text("\n".join([*kept, *lines, ""]))

    def _addresses(self) -> Mapping[str, str]:
        controller = f"{LOOPBACK}:{free_port()}"
        return {
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self.port},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{self.port}",
            "log.dirs": str(self.folder / "data"),
        }

    def _java(self, *arguments: str) -> Sequence[str]:
        options = ["-Xmx512m", "-Djava.net.preferIPv4Stack=true"]
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", *options, quiet, "-cp", f"{self.libs}/*", *arguments]


_PRODUCE = 0  # the number of this kind of request in Kafka's protocol


class KafkaStandIn(AbstractContextManager):
    """librdkafka's mock cluster; it runs in this process, and others can connect to it."""

    def __init__(self) -> None:
        self._owner = confluent_kafka.Producer({"test.mock.num.brokers": 1})
        broker = next(iter(self._owner.list_topics(timeout=REPLY_TIMEOUT_S).brokers.values()))
        self.url = kafka_url_of(broker.port)

    def refuse(self, error: int, batches: int) -> None:
        """Answer this error to the next batches of records, for each record of them."""
        library, handle = native(self._owner)
        library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        cluster = ctypes.c_void_p(library.rd_kafka_handle_mock_cluster(handle))
        errors = (ctypes.c_int * batches)(*[error] * batches)
        push = library.rd_kafka_mock_push_request_errors_array
        push(cluster, ctypes.c_int16(_PRODUCE), ctypes.c_size_t(batches), errors)

    def __exit__(self, *exc: object) -> None:
        del self._owner  # the cluster lives as long as the client that made it


def native(producer: confluent_kafka.Producer) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """librdkafka itself, and its handle of the producer."""
    loaded = Path("/proc/self/maps").read_text()
    library = next(word for word in loaded.split() if "librdkafka" in word)
    # confluent_kafka's object begins, after Python's own two words, with librdkafka's handle.
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__)
    return ctypes.CDLL(library), handle


def kafka_url_of(port: int) -> str:
    return f"kafka://{LOOPBACK}:{port}"


def serves_metadata(port: int) -> bool:
    """Whether a broker on the port answers, and lists itself as a broker."""
    if not accepts(port):
        return False  # checked first, since librdkafka prints every refused connection
    client = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{port}"})
    try:
        return bool(client.list_topics(timeout=REPLY_TIMEOUT_S).brokers)
    except confluent_kafka.KafkaException:
        return False


def cached_libs() -> Path | None:
    """The jars that `install` fetched, if they exist and Java is installed."""
    libs = cache_folder() / f"kafka-{pom_version()}"
    return libs if libs.exists() and shutil.which("java") else None


def path_libs() -> Path | None:
    """The jars of a Kafka whose start script is on PATH, if Java is installed."""
    script = shutil.which("kafka-server-start.sh") or shutil.which("kafka-server-start")
    if script is None or shutil.which("java") is None:
        return None
    libs = Path(script).resolve().parent.parent / "libs"
    return libs if libs.exists() else None


def libs_version(libs: Path) -> str:
    jars = (re.fullmatch(r"kafka_[\d.]+-([\d.]+)\.jar", jar.name) for jar in libs.glob("*.jar"))
    return next((jar.group(1) for jar in jars if jar), "of unknown version")


def pom_version() -> str:
    found = re.search(r"<artifactId>kafka_[\d.]+</artifactId>\s*<version>([^<]+)", POM.read_text())
    if found is None:
        raise LookupError(f"{POM} has no dependency on Kafka")
    return found.group(1)


def install() -> None:
    """Fetch the jars, and prepare quick starts with them, each once.

    The folders appear only when they are complete.
    """
    libs = cache_folder() / f"kafka-{pom_version()}"
    with locked(cache_folder() / "kafka.lock"):
        if debian.is_debian_root():
            _install_java()
        if not libs.exists() and shutil.which("mvn"):
            with tempfile.TemporaryDirectory(prefix="kafka-", dir=cache_folder()) as unfinished:
                fetched = Path(unfinished) / "libs"
                _fetch(fetched)
                fetched.rename(libs)
        if cached_libs() == libs and not ready_folder(libs).exists():
            with tempfile.TemporaryDirectory(prefix="kafka-", dir=cache_folder()) as unfinished:
                ready = Path(unfinished) / "ready"
                _make_ready(libs, ready)
                ready.rename(ready_folder(libs))


def ready_folder(libs: Path) -> Path:
    """The folder of the files with which a node of these jars starts in half the time."""
    return cache_folder() / f"kafka-{libs_version(libs)}-ready"


def _make_ready(libs: Path, folder: Path) -> None:
    """Put a formatted storage and an archive of a node's loaded classes into the folder."""
    folder.mkdir()
    archive = f"-XX:ArchiveClassesAtExit={folder / CLASSES}"
    node = KafkaNode(libs=libs, options=[*SHORT_LIVED, archive])
    try:
        node.format()
        shutil.copytree(node.folder / "data", folder / STORAGE)
        node.start()
    finally:
        node.close()


def _install_java() -> None:
    wanted = {"java": "default-jre-headless", "mvn": "maven"}
    if missing := [package for program, package in wanted.items() if not shutil.which(program)]:
        debian.install(*missing)


def _fetch(folder: Path) -> None:
    what = ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    mvn = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(POM)]
    command = [*mvn, "dependency:copy-dependencies", *what]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)


def sources() -> Iterator[Source]:
    yield from from_environment("kafka")
    if docker_answers():
        yield Source(what=f"{IMAGE} (docker)", open=_container)
    for libs, origin in ((cached_libs(), "private node"), (path_libs(), "PATH")):
        if libs is not None:
            yield _private(libs, origin)
    mock = f"librdkafka {confluent_kafka.libversion()[0]} mock"
    yield Source(what=mock, open=KafkaStandIn, stand_in=True)


def _private(libs: Path, origin: str) -> Source:
    return Source(what=f"{libs_version(libs)} ({origin})", open=lambda: KafkaNode(libs=libs))


def _container() -> Container:
    # A client reconnects to the advertised address: the port must be the same inside and outside.
    return Container(
        IMAGE,
        None,
        is_ready=serves_metadata,
        url_of=kafka_url_of,
        environment=_container_environment,
    )


def _container_environment(port: int) -> Mapping[str, str]:
    addresses = {
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": f"PLAINTEXT://:{port},CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
    }
    properties = {**SINGLE_NODE, **addresses}
    return {f"KAFKA_{key.replace('.', '_').upper()}": text for key, text in properties.items()}


@pytest.fixture(scope="session")
def kafka_url() -> Iterator[str]:
    """A Kafka that the whole session shares; name topics and groups after `namespace`."""
    yield from serve("kafka", sources())


@pytest.fixture(scope="session")
def real_kafka_url(kafka_url: str) -> str:
    """`kafka_url`, or a skip if it is a stand-in: for latency, transactions, admin calls."""
    if next(sources()).stand_in:
        pytest.skip("this test needs a real Kafka")
    return kafka_url
