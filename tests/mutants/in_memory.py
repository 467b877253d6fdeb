"""Mistakes in the bridge in memory that users test their code with."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TESTS = "tests/integration/test_testing.py"
_CONTRACT = "tests/integration/test_testing_contract.py"
MUTANTS = [
    Mutant(
        "testing: no tick", "delaybridge/testing/redis.py",
        "self._redis.now_ms += 1", "pass",
        "equal delays lose the order of the calls",
        f"{_TESTS} -k millisecond",
    ),
    Mutant(
        "testing: keys expire by the wall", "delaybridge/testing/redis.py",
        "self._redis.now_ms / 1000, lambda", "1.8e9, lambda",
        "what Redis forgets after a while, the bridge keeps",
        f"{_TESTS} -k redis_forgets",
    ),
    Mutant(
        "testing: deaf", "delaybridge/testing/engine.py",
        "self._scanner.wake(*found)", "pass",
        "what is scheduled after the first look is delivered late, or never",
        f"{_TESTS} -k millisecond",
    ),
    Mutant(
        "testing: settles later", "delaybridge/testing/engine.py",
        "            scanner.settling.start(now_ms + _TTL_MS, is_backlog=False)"
        "  # without waiting for more\n", "",
        "what was delivered is in flight after advance",
        f"{_TESTS} -k millisecond",
    ),
    Mutant(
        "testing: rules once", "delaybridge/testing/engine.py",
        "if self._rules.by_place != before.by_place and", "if not before.by_place and",
        "a rule that is changed again is not obeyed",
        f"{_CONTRACT} -k rules",
    ),
    Mutant(
        "testing: every failure", "delaybridge/testing/brokers.py",
        "left and left - 1, outcome", "left, outcome",
        "a delivery that is to fail twice fails for ever",
        f"{_CONTRACT} -k fails",
    ),
    Mutant(
        "testing: told of half", "delaybridge/testing/bridge.py",
        "self._told += 1", "self._told += 2",
        "a callback misses every other message",
        f"{_TESTS} -k goes_on",
    ),
]  # fmt: skip
