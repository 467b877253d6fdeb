"""Mutants of the front: what it makes at the broker, and what it changes of a client's methods."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_VHOST = "tests/integration/test_front_vhost.py"
_EXCHANGES = "tests/integration/test_front_exchanges.py"
MUTANTS = [
    Mutant(
        "front: what has an intake is a front's", "delaybridge/front/vhost.py",
        "if await self._is_there(route):", "if True:",
        "a deleted exchange cannot be declared as a plain one while its messages wait",
        f"{_VHOST} -k name_is_free",
    ),
    Mutant(
        "front: any second exchange is taken", "delaybridge/front/making.py",
        "if adopt or not seen.target or seen.marker or seen.queue:", "if True:",
        "an exchange of others gets messages that were never meant for it",
        f"{_VHOST} -k never_changed",
    ),
    Mutant(
        "front: a foreign exchange goes", "delaybridge/front/making.py",
        "if is_there and not await _differs(connection, route):", "if is_there:",
        "the exchange of others is deleted, with its bindings",
        f"{_VHOST} -k never_changed",
    ),
    Mutant(
        "front: flags are always the same", "delaybridge/front/making.py",
        "*topology.declarations(route, durable, internal))",
        "*topology.declarations(route))",
        "what shall be internal takes publishes; an unequal declare is accepted",
        f"{_VHOST} -k other_flags",
    ),
    Mutant(
        "front: each caller asks by itself", "delaybridge/front/vhost.py",
        "if (running := self._running.get(key)) is None:", "running = None\n        if True:",
        "a thousand clients that come back at once make an exchange a thousand times",
        f"{_VHOST} -k share_the_work",
    ),
    Mutant(
        "front: what the broker ended is awaited", "delaybridge/front/channels.py",
        "self._ended.add(channel)", "pass",
        "a client that declares before it has heard of its channel's end hangs",
        f"{_EXCHANGES} -k error_before",
    ),
    Mutant(
        "front: what cannot be asked is not ours", "delaybridge/front/exchanges.py",
        "            found = exc\n",
        "            found = method.frame if method.id in methods.BINDS else exc\n",
        "the queue takes all undelayed messages away from the bindings",
        f"{_EXCHANGES} -k unanswered",
    ),
    Mutant(
        "front: a delivery that is cut passes", "delaybridge/amqp/walker.py",
        "(id in watched or (id in _WITH_CONTENT and length < _LITTLE))", "(id in watched)",
        "a consumer now and then sees the name of an exchange that it does not know",
        "tests/unit/test_walker.py -k rest_is_there",
    ),
    Mutant(
        "front: a bind goes out as it came", "delaybridge/front/exchanges.py",
        "renamed = methods.renamed(method, at, source + self._suffix)", "renamed = method.frame",
        "a queue that is bound to a delayed exchange gets nothing that is due",
        f"{_EXCHANGES} -k bindings_of_queues",
    ),
    Mutant(
        "front: declare-ok comes before D stands", "delaybridge/front/exchanges.py",
        "await vhost.stand(name, durable, internal)",
        "self._at.front.begin(vhost.stand(name, durable, internal))",
        "what a client publishes at once meets no exchange, and its channel is closed",
        f"{_EXCHANGES} -k what_follows",
    ),
    Mutant(
        "front: a delete takes D, not what is behind it", "delaybridge/front/exchanges.py",
        "methods.delete(method.channel, exchange + self._suffix, flags)",
        "methods.delete(method.channel, exchange, flags)",
        "if-unused counts no binding, and a name that was deleted is never free",
        f"{_EXCHANGES} -k judged_by_the_bindings",
    ),
    Mutant(
        "front: a delete that meets a declare takes D alone", "delaybridge/front/exchanges.py",
        "is_ours(exchange.decode(), True)", "is_ours(exchange.decode(), False)",
        "who declares gets 404, or D.due keeps its bindings for the next who declares",
        f"{_EXCHANGES} -k deleted_while",
    ),
    Mutant(
        "front: D goes though D.due was declared again", "delaybridge/front/making.py",
        "        if await topology.exists(connection, route.target):\n            return\n", "",
        "two clients delete and declare: the one that has declare-ok has no exchange",
        f"{_VHOST} -k without_its_second",
    ),
    Mutant(
        "front: no marker", "delaybridge/front/making.py",
        "    await connection.call_alone(method, **about)\n    if", "    if",
        "after a front that was killed half-way nobody can declare the exchange",
        f"{_VHOST} -k half_way",
    ),
    Mutant(
        "front: a refused channel goes on", "delaybridge/front/channels.py",
        "        self.muted.add(channel)\n", "",
        "what was sent behind a refused declare is done",
        "tests/unit/test_front_relay.py -k refused_channel",
    ),
    Mutant(
        "front: consumers are told D.due", "delaybridge/front/exchanges.py",
        "return methods.renamed(method, at, name)", "return method.frame",
        "a consumer that looks at the exchange does not know it",
        "tests/unit/test_front_relay.py",
    ),
    Mutant(
        "front: guest comes from anywhere", "delaybridge/front/relay.py",
        "if shown.user != handshake.GUEST or self.is_trusted:", "if True:",
        "a broker that takes guest from its own host alone takes it from all others",
        "tests/integration/test_front_settings.py -k guest",
    ),
    Mutant(
        "front: it is ready only with Redis", "delaybridge/operate/metrics/health.py",
        "if any(report.front for report in reports.values()):", "if False:",
        "without Redis no client reaches the broker, though its messages need none",
        "tests/unit/test_front_counts.py",
    ),
    Mutant(
        "front: a node that closes at once is there", "delaybridge/front/announcing.py",
        "await reader.readexactly(1)", "await reader.read(1)",
        "nothing is red while no client can connect",
        "tests/unit/test_front_counts.py",
    ),
]  # fmt: skip
