"""Verbs on many messages: spread over time, counted, stopped."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from delaybridge.errors import StoreUnavailable
from delaybridge.message import Answer, State
from delaybridge.operate.cli.messages import bulk
from delaybridge.operate.terminal import output
from delaybridge.operate.terminal.failure import Exit
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.store.messages.selection import Selected, Selection


class FakePages:
    """Finds pages of ten messages, without a store."""

    def select(self, _: Selection) -> Iterator[list[Selected]]:
        for page in range(3):
            yield [Selected(f"{page}-{n}", n % 2, State.DELAYED) for n in range(10)]


def swept(stop: BaseException | None) -> tuple[Callable[[], int], list[int]]:
    """A sweep that is stopped before its third batch; what it spreads the messages over."""
    spread: list[int] = []

    def verb(
        _client: object, some: Sequence[object], *, key: None, spread_ms: list[int]
    ) -> list[Answer]:
        if stop is not None and len(spread) == 20:
            raise stop
        spread.extend(spread_ms)
        return [Answer.CANCELLED] * len(some)

    client: Any = FakePages()
    counted: Counter[int | None] = Counter({0: 15, 1: 15})
    sweep = bulk.Sweep(Invocation(output.Output()), client, verb, over_ms=1500, counted=counted)

    def run() -> int:
        try:
            return sweep.run(client.select(Selection()))
        finally:
            sweep.show_summary()

    return run, spread


def test_a_sweep_spreads_each_bucket_s_messages_evenly(capsys: pytest.CaptureFixture[str]) -> None:
    run, spread = swept(None)
    assert run() == Exit.DONE
    assert spread[::2] == spread[1::2] == [*range(0, 1500, 100)]
    printed = capsys.readouterr()
    assert printed.err == "30 cancelled\n"
    assert printed.out.splitlines()[::29] == ["0-0  cancelled", "2-9  cancelled"]


def test_a_sweep_clears_its_bar_before_it_prints_the_sum(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = swept(None)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert run() == Exit.DONE
    printed = capsys.readouterr().err
    assert "30/30" in printed
    assert printed.endswith("\x1b[2K30 cancelled\n")


def test_a_sweep_that_is_stopped_prints_its_answers(capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = swept(KeyboardInterrupt())
    assert run() == Exit.INTERRUPTED
    assert capsys.readouterr().err == "error: interrupted\n20 cancelled\n"
    run, _ = swept(StoreUnavailable("redis: x"))
    with pytest.raises(StoreUnavailable):
        run()
    assert capsys.readouterr().err == "20 cancelled\n"


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({}, 0),
        ({"cancelled": 3, "cancelled_maybe_delivered": 1}, 0),
        ({"cancelled": 3, "in_flight": 1}, 6),
        ({"in_flight": 3}, 4),
        ({"unknown": 3}, 3),
        ({"unknown": 3, "in_flight": 1}, 4),
    ],
    ids=str,
)
def test_the_exit_code_of_many_answers(answers: dict[str, int], code: int) -> None:
    assert bulk.exit_code(Counter(answers)) == code
