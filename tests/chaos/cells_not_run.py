"""Cells of the specification that have nothing to run here, and why."""

from __future__ import annotations

from tests.chaos.cell import Cell

THREE = "three brokers with replicas do not fit on the machine of the tests"


def not_run(id: str, component: str, fault: str, why: str) -> Cell:
    return Cell(id=id, component=component, fault=fault, expects="", not_run=why)


CELLS = [
    not_run("F40", "RabbitMQ", "two of three nodes of a quorum queue are down", THREE),
    not_run(
        "F45", "Kafka", "refuses records: too few replicas, authorization, size",
        "tests/integration/test_publish_kafka.py does it without load",
    ),
    not_run("F46", "Kafka", "the leader of three replicas is killed", THREE),
    not_run("F47", "Kafka", "two of three brokers are killed", THREE),
    not_run(
        "F49", "Kafka", "the topic is deleted under load",
        "tests/integration/test_publish_kafka.py does it without load",
    ),
    not_run(
        "F50", "Kafka", "the queue of the producer is full",
        "tests/integration/test_publish_kafka_pace.py does it",
    ),
    not_run("F60", "HTTP server", "killed while it answers", "test_http.py does it"),
]  # fmt: skip
