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
        "if adopt or not seen.is_unmarked:", "if True:",
        "an exchange of others gets messages that were never meant for it",
        f"{_VHOST} -k never_changed",
    ),
    Mutant(
        "front: a foreign exchange goes", "delaybridge/front/making.py",
        "if await exists(connection, route.source) and not await _differs(connection, route):",
        "if await exists(connection, route.source):",
        "the exchange of others is deleted, with its bindings",
        f"{_VHOST} -k never_changed",
    ),
    Mutant(
        "front: flags are always the same", "delaybridge/front/making.py",
        'about = {**about, "durable": durable, "internal": internal}', "about = {**about}",
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
        "            is_ours = await self._is_ours(source)\n        except Refused as exc:\n"
        "            self._refuse(method, source, exc)\n",
        "            is_ours = await self._is_ours(source)\n        except Refused:\n"
        "            self._send(method, method.frame, source)\n",
        "the queue takes all undelayed messages away from the bindings",
        f"{_EXCHANGES} -k unanswered",
    ),
    Mutant(
        "front: a delivery that is cut passes", "delaybridge/amqp/walker.py",
        "(id in watched or (id in _WITH_CONTENT and length < _LITTLE))", "(id in watched)",
        "a consumer now and then sees the name of an exchange that it does not know",
        "tests/unit/test_walker.py -k rest_is_there",
    ),
]  # fmt: skip
