"""Real servers for tests: one file per server, each private, on 127.0.0.1, stopped by its own id.

Every file lists its sources in the order of preference: a URL from the environment, a Docker
engine, the recipe for root on Debian, a binary on PATH, a stand-in. The first that is there is
used; `tests/conftest.py` prints it, and turns a missing one into a skip or, with `--require`,
into a failure. `python -m tests.servers` (part of `make test`) installs what the recipes need.

The classes (`RedisServer`, `RabbitMQNode`, `KafkaNode`) need no pytest: benchmarks and fault
tests start, kill and restart their own.
"""
