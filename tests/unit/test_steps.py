"""Several calls run as one: their commands travel together, answers and errors do not mix."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from delaybridge.store.protocol.together import together
from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps


def command(name: str) -> RedisCommand[Any]:
    return RedisCommand(name, (), (), str, is_plain=True)


def asking(*rounds: str) -> Steps[str]:
    """A call that asks for the words of each round together; its result is all the answers."""
    told: list[str] = []
    for words in rounds:
        told += yield [command(word) for word in words.split()]
    return " ".join(told)


def each() -> Steps[int]:
    replies = yield Each([command("good"), command("bad")])
    return sum(isinstance(reply, Exception) for reply in replies)


def failing() -> Steps[str]:
    if True:
        raise ValueError("before it asks for anything")
    yield []


def mending() -> Steps[str]:
    try:
        yield [command("bad")]
    except KeyError:
        (told,) = yield [command("good")]
        return f"{told} after all"
    return "never"


def completed(steps: Steps[Any]) -> tuple[Any, list[list[str]]]:
    """Complete a call: its result, and what each pipeline sent. `bad` is answered with an error."""
    sent: list[list[str]] = []
    replies: list[Any] | None = None
    while True:
        try:
            asked = steps.send(replies) if replies is not None else next(steps)
        except StopIteration as done:
            return done.value, sent
        assert isinstance(asked, Each)
        sent.append([command.name for command in asked])
        replies = [KeyError("bad") if c.name == "bad" else c.name for c in asked]


def test_the_commands_of_several_calls_travel_together() -> None:
    calls = [asking("a b", "c"), asking("d"), asking("", "e", "f g")]
    result, sent = completed(together(calls))
    assert result == ["a b c", "d", "e f g"]
    assert sent == [["a", "b", "d"], ["c", "e"], ["f", "g"]]


def test_an_error_reaches_only_the_call_that_asked() -> None:
    calls: list[Generator[Any, Any, Any]] = [
        *(asking("a bad b", "never"), asking("c", "d"), failing(), each(), mending())
    ]
    (first, *others), sent = completed(together(calls))
    assert isinstance(first, KeyError)
    assert others[0] == "c d" and isinstance(others[1], ValueError)
    assert others[2:] == [1, "good after all"]
    assert sent == [["a", "bad", "b", "c", "good", "bad", "bad"], ["d", "good"]]


def test_without_calls_nothing_is_asked() -> None:
    assert completed(together([])) == ([], [])
