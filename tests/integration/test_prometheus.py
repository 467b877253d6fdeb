"""config/prometheus and config/grafana with a real Prometheus that scrapes real processes.

The alerts are those that are shipped; only their `for` is cut, so that no test waits for minutes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from typing import Any

import pika
import psutil
import pytest
import redis
import yaml

from delaybridge import Client, Message
from delaybridge.store.protocol import keys
from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.fleet import Process
from tests.rigs.waiting import until
from tests.servers.clock import ClockedRedis
from tests.servers.cluster import ClusterSite
from tests.servers.process import LOOPBACK, free_port
from tests.servers.prometheus import PrometheusServer, program

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "config/prometheus"
DASHBOARD: Any = json.loads((ROOT / "config/grafana/dashboards/delaybridge.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((CONFIG / "alerts.yml").read_text())
RULES: list[dict[str, Any]] = ALERTS["groups"][0]["rules"]
SCRAPE = "500ms"
OF_THE_PAST = re.compile(r"increase|rate\(")  # such an alert rests minutes after its cause


class Site:
    """A Redis, a worker and ingest of a namespace, and a Prometheus that scrapes those that run."""

    def __init__(self, folder: Path, rabbitmq_url: str) -> None:
        self.folder, self.rabbitmq_url = folder, rabbitmq_url
        self.queue = self.namespace = f"t-{uuid.uuid4().hex[:16]}"
        self.delay_exchange = f"{self.namespace}.delay"
        # Alerts that look back on a cause that is over. A starved machine makes messages late.
        self.fired = {"DelaybridgeLate"}
        self.processes: dict[str, Process] = {}
        self._ports: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Site:
        self.redis = self._stack.enter_context(ClockedRedis())
        self.client = self._stack.enter_context(
            Client(self.redis.url, namespace=self.namespace, brokers={"rabbitmq": "amqp://h"})
        )
        with rabbitmq_channel(self.rabbitmq_url) as channel:
            channel.queue_declare(self.queue, durable=True)
            channel.exchange_declare(self.namespace, "fanout", durable=True)
            channel.queue_bind(self.queue, self.namespace)
        self.targets = self.folder / "targets.json"
        self.targets.write_text("[]")
        self.prometheus = self._stack.enter_context(PrometheusServer(self._config()))
        self.start("ingest", "ingest", "rabbitmq", "--exchange", self.delay_exchange)
        self.start("worker", "scan")
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self.processes.values():
            process.close()
        self._stack.close()
        with rabbitmq_channel(self.rabbitmq_url) as channel:
            for queue in (self.queue, self.delay_exchange, f"{self.delay_exchange}.expired"):
                channel.queue_delete(queue)
            for exchange in (self.namespace, self.delay_exchange, f"{self.delay_exchange}.owner"):
                channel.exchange_delete(exchange)

    def _config(self) -> str:
        """The shipped configuration, with these targets and a short `for`."""
        rules = self.folder / "alerts.yml"
        rules.write_text(re.sub(r"for: .*", "for: 1s", (CONFIG / "alerts.yml").read_text()))
        config = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": SCRAPE, "evaluation_interval": SCRAPE}
        config["rule_files"] = [str(rules)]
        (job,) = config["scrape_configs"]
        del job["dns_sd_configs"]
        job["file_sd_configs"] = [{"files": [str(self.targets)], "refresh_interval": "1s"}]
        return yaml.safe_dump(config)

    def start(self, name: str, *command: str, redis_url: str = "", **environment: str) -> Process:
        """Start a process that is scraped; it replaces the one of that name."""
        if name in self.processes:
            self.forget(name)
        port = self._ports[name] = free_port()
        options = ["--redis", redis_url or self.redis.url, "--namespace", self.namespace]
        process = self.processes[name] = Process(
            name,
            [
                *(sys.executable, "-m", "delaybridge", *options),
                *("--broker", f"rabbitmq={self.rabbitmq_url}", *command),
                *("--name", f"{name}-{port}", "--metrics-port", str(port)),
            ],
            {
                **os.environ,
                "DELAYBRIDGE_LEASE__TTL_MS": "1500",
                "DELAYBRIDGE_LEASE__RENEW_MS": "400",
                "DELAYBRIDGE_REDIS__TIMEOUT_S": "0.8",
                **environment,
            },
            self.folder / f"{name}-{port}.log",
        )
        self._scrape()
        return process

    def forget(self, name: str) -> None:
        """End a process, and scrape it no more."""
        self.processes.pop(name).close()
        del self._ports[name]
        self._scrape()

    def _scrape(self) -> None:
        targets = [f"{LOOPBACK}:{port}" for port in self._ports.values()]
        new = self.targets.with_suffix(".new")
        new.write_text(json.dumps([{"targets": targets}]))
        new.replace(self.targets.with_suffix(".json"))

    def value(self, expression: str) -> float:
        """The value of an expression with one result; -1 without one."""
        for process in self.processes.values():
            process.revive()  # who looks waits for one
        found = self.prometheus.query(expression)
        return float(found[0]["value"][1]) if found else -1.0

    def destinations(self, expression: str) -> set[str]:
        """The destinations of which an expression has a value."""
        return {each["metric"]["destination"] for each in self.prometheus.query(expression)}

    def active(self) -> set[str]:
        """The alerts that are pending or fire, without those that look back on an earlier cause."""
        return {*self.prometheus.alerts()} - self.fired

    def rests(self) -> None:
        """Wait until all processes are scraped, something is published and no alert is active."""
        first = self.client.schedule(f"rabbitmq:/{self.queue}", b"x", delay="1ms")

        def is_calm() -> bool:
            up = self.value('count(up{job="delaybridge"} == 1)') == len(self._ports)
            owned = self.value("max(delaybridge_worker_buckets)") == 16
            return up and owned and not self.active() and self.client.get(first.id) is None

        until(is_calm, lambda: f"no alert is active, not {self.active()}")

    def fires(self, *alerts: str) -> None:
        """Wait until these alerts fire."""

        def fire() -> bool:
            now = self.prometheus.alerts()
            return all(now.get(alert) == "firing" for alert in alerts)

        until(fire, lambda: f"{alerts} fire, not {self.prometheus.alerts()}")
        looking_back = {rule["alert"] for rule in RULES if OF_THE_PAST.search(rule["expr"])}
        self.fired |= {*self.prometheus.alerts()} & looking_back

    def cancel(self, *ids: str) -> None:
        """Cancel messages; one that is just tried once more is cancelled when that has failed."""
        until(lambda: "in_flight" not in self.client.cancel_many(ids))

    def publish(self, body: bytes, **headers: Any) -> None:
        """Publish to the delay exchange."""
        with rabbitmq_channel(self.rabbitmq_url) as channel:
            properties = pika.BasicProperties(headers=headers, message_id=uuid.uuid4().hex)
            channel.basic_publish(self.delay_exchange, "key", body, properties)


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, rabbitmq_url: str, prometheus_folder: str
) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("prometheus"), rabbitmq_url) as site:
        yield site


@pytest.mark.usefixtures("prometheus_folder")
@pytest.mark.parametrize("check", [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_accepts_the_files(check: tuple[str, str]) -> None:
    kind, file = check
    subprocess.run([program("promtool"), "check", kind, CONFIG / file], check=True)


# the dashboard


def test_every_query_of_the_dashboard_has_data_after_a_short_load(site: Site) -> None:
    site.rests()
    client, queue = site.client, f"rabbitmq:/{site.queue}"
    site.start("second", "scan")  # the first gives buckets away
    until(lambda: site.value("min(delaybridge_worker_buckets > 0)") == 8)
    for n in range(5):
        client.schedule_many([Message(queue, b"x", delay=f"{n * 50 + i}ms") for i in range(20)])
        site.publish(b"x", **{"x-delay": 20})
    plan = {"max_attempts": 2, "base_ms": 1500}
    client.schedule(f"rabbitmq:/{site.queue}-missing", b"x", delay="1ms", retry=plan)
    client.schedule(f"rabbitmq:/{site.queue}-gone", b"x", id="gone", delay="1ms")
    client.schedule(queue, b"x", id="later", delay="30s")
    held = f"rabbitmq:{site.namespace}.held"
    client.destinations.pause(held)
    client.schedule(f"{held}/key", b"x", id="held", delay="1ms")
    expressions = [
        target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])
    ]
    assert len(expressions) > 30

    def missing() -> list[str]:
        client.schedule(queue, b"x", delay="1ms")  # rates need a load that goes on
        site.publish(b"x", **{"x-delay": 1})
        return [each for each in expressions if not has_data(site, each)]

    until(lambda: not missing(), lambda: f"data for {missing()}")
    site.fires("DelaybridgeBuried")  # of either worker
    site.cancel("gone", "later", "held")
    client.destinations.resume(held)
    site.forget("second")


def has_data(site: Site, expression: str) -> bool:
    # `or vector(0)` shows zero where nothing ever failed: here it did.
    bare = expression.replace(" or vector(0)", "").replace("$destination", ".*")
    return any(isfinite(float(each["value"][1])) for each in site.prometheus.query(bare))


def overdue_and_broker_down(site: Site) -> None:
    site.forget("worker")
    node, listen = (f"{LOOPBACK}:{free_port()}" for _ in range(2))
    away = f"amqp://{node}"
    site.start("worker", "scan", DELAYBRIDGE_BROKERS__AWAY=away)
    site.client.schedule("rabbitmq:/" + site.queue, b"x", delay="1ms")
    with Client(site.redis.url, namespace=site.namespace, brokers={"away": away}) as client:
        client.schedule("away:/q", b"x", id="away", delay="1ms")
    site.start("front", "front", "--no-ingest", "--listen", listen, DELAYBRIDGE_FRONT__NODES=node)
    site.fires("DelaybridgeBrokerDown", "DelaybridgeOverdue", "DelaybridgeFrontCutOff")
    site.forget("front")
    site.cancel("away")
    site.start("worker", "scan")


def killed(site: Site) -> None:
    site.processes["worker"].kill()
    site.fires("DelaybridgeTargetDown", "DelaybridgeNoWorker", "DelaybridgeBucketsUnowned")
    site.start("worker", "scan")


def store_down(site: Site) -> None:
    site.redis.pause()
    site.fires("DelaybridgeStoreDown")
    site.redis.resume()


def store_refuses(site: Site) -> None:
    with redis.Redis.from_url(site.redis.url) as plain:
        full = "maxmemory", int(plain.info("memory")["used_memory"] * 1.1), "StoreNearlyFull"
        for name, value, alert in (full, ("min-replicas-to-write", 1, "StoreRefusesWrites")):
            plain.config_set(name, value)
            site.fires(f"Delaybridge{alert}")
            plain.config_set(name, 0)


def given_up(site: Site) -> None:
    missing = f"rabbitmq:/{site.queue}-missing"
    site.client.schedule(missing, b"x", delay="1ms", retry={"max_attempts": 1})
    site.client.schedule(missing, b"x", id="tried", delay="1ms", retry={"base_ms": 60_000})
    site.fires("DelaybridgeBuried", "DelaybridgeRetrying")
    site.cancel("tried")


def late(site: Site) -> None:
    place = f"rabbitmq:{site.namespace}"
    site.client.schedule(f"{place}/late", b"x", delay="1ms")
    confirmed = f'delaybridge_messages_published_total{{destination="{place}"}}'
    until(lambda: site.value(confirmed) >= 1)
    (worker,) = map(psutil.Process, site.processes["worker"].children())
    worker.suspend()
    try:
        until(lambda: worker.status() == psutil.STATUS_STOPPED)
        site.client.schedule_many([Message(f"{place}/late", b"x", delay="1ms")] * 20)
        until(lambda: site.client.stats().overdue_ms > 2500)
    finally:
        worker.resume()
    labels = f'alertname="DelaybridgeLate", alertstate="firing", destination="{place}"'
    until(lambda: site.value(f"ALERTS{{{labels}}}") == 1)


def clock_skew(site: Site) -> None:
    site.redis.set_clock(2000)
    site.fires("DelaybridgeClockSkew")
    site.redis.set_clock(0)


def refused(site: Site) -> None:
    site.publish(b"x", **{"x-delay": "soon"})
    site.fires("DelaybridgeRefused")


def source_taken(site: Site) -> None:
    taken = f"{site.namespace}.taken.delay"
    owner = {"exchange": f"{taken}.owner", "exchange_type": "fanout", "durable": True}
    other = {"alternate-exchange": f"{taken}:other@00"}
    with rabbitmq_channel(site.rabbitmq_url) as channel:
        channel.exchange_declare(**owner, internal=True, arguments=other)
        site.start("taken", "ingest", "rabbitmq", "--exchange", taken)
        site.fires("DelaybridgeSourceDown")
        site.forget("taken")
        channel.exchange_delete(owner["exchange"])


def runs_missed(site: Site) -> None:
    site.client.recurring.add("beat", f"rabbitmq:/{site.queue}", b"x", every="1s", missed="skip")
    site.processes["worker"].kill()
    next_ms = site.client.stats().now_ms + 4000
    until(lambda: site.client.stats().now_ms > next_ms)
    site.start("worker", "scan")
    site.fires("DelaybridgeRecurringMissed")
    site.client.recurring.remove("beat")


def node_silent(site: Site) -> None:
    with ClusterSite(replicas=0) as cluster:
        site.start("clustered", "scan", redis_url=cluster.url)
        sixteen = "count(delaybridge_worker_buckets == 16) == 2"
        until(lambda: site.value(sixteen) == 2, "both workers hold 16 buckets")
        home = cluster.master_of(keys.birth(site.namespace))
        other = next(master for master in cluster.masters if master is not home)
        other.pause()
        site.fires("DelaybridgeBucketsUnseen")
        other.resume()
        site.forget("clustered")


@pytest.mark.slow
def test_a_wait_that_somebody_wanted_is_lateness_but_no_alert(site: Site) -> None:
    site.rests()
    (rule,) = [rule for rule in RULES if rule["alert"] == "DelaybridgeLate"]
    lateness, wanted, _ = rule["expr"].partition("unless")
    queue, place = f"{site.queue}-paused", f"rabbitmq:/{site.queue}-paused"
    with rabbitmq_channel(site.rabbitmq_url) as channel:
        channel.queue_declare(queue)
        try:
            site.client.schedule(place, b"x", delay="1ms")
            confirmed = f'delaybridge_messages_published_total{{destination="{place}"}}'
            until(lambda: site.value(confirmed) == 1)
            site.client.destinations.pause(place)
            until(lambda: f"rules=1 paused={place}" in site.processes["worker"].log)
            receipts = site.client.schedule_many([Message(place, b"x", delay="1ms")] * 20)
            held = f'min_over_time(delaybridge_held_messages{{destination="{place}"}}[3s])'
            until(lambda: site.value(held) == 20)
            until(lambda: site.client.stats().now_ms > receipts[0].due_ms + 2500)
            site.client.destinations.resume(place)
            until(lambda: place in site.destinations(lateness))
            assert wanted and place not in site.destinations(rule["expr"])
        finally:
            channel.queue_delete(queue)


CAUSES: dict[Callable[[Site], None], tuple[str, ...]] = {
    overdue_and_broker_down: ("Overdue", "BrokerDown", "FrontCutOff"),
    killed: ("TargetDown", "NoWorker", "BucketsUnowned"),
    store_down: ("StoreDown",),
    store_refuses: ("StoreNearlyFull", "StoreRefusesWrites"),
    given_up: ("Buried", "Retrying"),
    late: ("Late",),
    clock_skew: ("ClockSkew",),
    refused: ("Refused",),
    source_taken: ("SourceDown",),
    runs_missed: ("RecurringMissed",),
    node_silent: ("BucketsUnseen",),
}


# Fired by numbers alone, in test_alert_rules.py: a metric's own tests cause them.
OF_NUMBERS = "KeysLost HeldBack LedgerComparing LedgerDown SourceFault FrontClientsWait".split()


def test_every_alert_has_a_test_that_causes_it() -> None:
    names = [*OF_NUMBERS, *(name for names in CAUSES.values() for name in names)]
    assert {f"Delaybridge{name}" for name in names} == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
@pytest.mark.slow_with("[!k]*")  # all but `killed`
def test_alerts_rest_then_fire_for_their_cause(site: Site, cause: Callable[[Site], None]) -> None:
    site.rests()
    cause(site)
