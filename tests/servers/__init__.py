"""Real servers for tests: one file per server. Each is private, on 127.0.0.1, stopped by its pid.

Every file lists the sources of its server in order of preference: a URL from the environment, a
Docker engine, a private process that `python -m tests.servers` installed (part of `make test`), a
binary on PATH, a stand-in. The first that is available is used. `plugin.py` prints it in the header
of a test run. If a server is missing, its tests are skipped or, with `--require`, the run fails.

The classes (`RedisServer`, `RabbitMQNode`, `KafkaNode`) need no pytest: benchmarks and fault
tests start, kill and restart their own.
"""
