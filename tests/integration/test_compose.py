"""The servers of docker-compose.yml, as far as they start without an engine: their own settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pytest
import redis
import yaml

from delaybridge import Client
from tests.servers.kafka import KafkaNode, serves_metadata
from tests.servers.process import LOOPBACK, free_port
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

ROOT = Path(__file__).parent.parent.parent
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
PASSWORD = "chosen-by-the-user"


@pytest.mark.usefixtures("redis_url")
def test_redis_starts_with_its_file_and_delaybridge_accepts_it(tmp_path: Path) -> None:
    program, file = SERVICES["redis"]["command"]
    assert (program, Path(file).name) == ("valkey-server", "redis.conf")
    text = (ROOT / "config/redis.conf").read_text().replace("dir /data", f"dir {tmp_path}")
    (tmp_path / "redis.conf").write_text(text)
    server = RedisServer()
    address = ["--bind", LOOPBACK, "--port", str(server.port)]
    server.command = lambda: [str(server.binary), str(tmp_path / "redis.conf"), *address]  # type: ignore[method-assign]
    with server, Client(server.url) as client, redis.Redis.from_url(server.url) as plain:
        assert client.schedule("rabbitmq:orders/timeout", b"x", delay="1h") == "created"
        assert plain.config_get("appendonly") == {"appendonly": "yes"}


@pytest.mark.usefixtures("rabbitmq_url")
def test_rabbitmq_s_user_may_do_the_steps_of_the_readme_and_administer_nothing() -> None:
    given = SERVICES["rabbitmq"]["environment"]
    user = given["RABBITMQ_DEFAULT_USER"]
    # The image hands the two variables to the server, which has the same settings for them.
    config = f"default_user = {user}\ndefault_pass = {PASSWORD}\n"
    with RabbitMQNode(config + (ROOT / "config/rabbitmq.conf").read_text()) as node:
        url = node.url.replace("guest:guest", f"{user}:{PASSWORD}")
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.exchange_declare("orders", "topic", durable=True)
            channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind("orders", "orders", "#")
        users = node.ctl("list_users", "--silent", "--no-table-headers")
        assert users.split("\t") == [user, "[management]\n"]


@pytest.mark.slow
@pytest.mark.usefixtures("real_kafka_url")
def test_kafka_s_variables_are_settings_that_it_starts_with(tmp_path: Path) -> None:
    inside, outside, controller = free_port(), free_port(), free_port()
    ports = {":29092": inside, ":9092": outside, ":9093": controller}
    properties = {}
    for name, value in SERVICES["kafka"]["environment"].items():
        # As the image does: KAFKA_LOG_DIRS is log.dirs.
        key = name.removeprefix("KAFKA_").lower().replace("_", ".")
        text = str(value).replace("/var/lib/kafka", str(tmp_path)).replace("kafka:", f"{LOOPBACK}:")
        for port, mine in ports.items():
            text = text.replace(f"//{port}", f"//{LOOPBACK}{port}").replace(port, f":{mine}")
        properties[key] = text
    node = KafkaNode()
    node.port = outside
    # As in the image, where these are all there are.
    lines = [f"{key}={value}\n" for key, value in properties.items()]
    (node.folder / "server.properties").write_text("".join(lines))
    with node:
        assert serves_metadata(outside)
        assert (tmp_path / "data" / "meta.properties").exists(), "on the volume"
