"""What a delay exchange is bound with."""

from __future__ import annotations

from delaybridge.ingest.instructions import INSTRUCTIONS
from delaybridge.ingest.rabbitmq.topology import BOUND_HEADERS, FORMER_HEADERS, _steps, declarations
from delaybridge.ingest.routes import Route


def test_the_binding_names_each_header_that_ingest_reads() -> None:
    """If one was added: the list before goes to `FORMER_HEADERS`, or its binding stays for ever."""
    assert set(BOUND_HEADERS) == INSTRUCTIONS
    assert BOUND_HEADERS not in FORMER_HEADERS


def test_each_declaration_finds_what_it_names() -> None:
    """A queue before it is bound, and the second queue before a message can expire in the first."""
    made = set()
    for method, about in declarations(Route("rabbitmq", "rabbitmq", "x.delay", "x")):
        if method in ("exchange_declare", "queue_declare"):
            made.add(about["queue"] if method == "queue_declare" else f"/{about['exchange']}")
        else:
            assert {about["queue"], f"/{about['exchange']}"} <= made


def test_the_delay_exchange_is_declared_in_one_go_with_its_binding() -> None:
    route = Route("rabbitmq", "rabbitmq", "x.delay", "x")
    (together,) = (steps for steps in _steps(route) if len(steps) > 1)
    assert [(method, about["exchange"]) for method, about in together] == [
        ("exchange_declare", "x.delay"),
        ("queue_bind", "x.delay"),
    ]
