"""Why a connection to a RabbitMQ could not be opened, in words of an operator."""

from __future__ import annotations

from pika.connection import Parameters
from pika.exceptions import ConnectionOpenAborted

from delaybridge.amqp.connection import _refusal


def test_a_broker_that_hangs_is_said_in_a_few_words() -> None:
    said = "Connection.close() called: \"Timeout while setting up AMQP to '127.0.0.1'/(2, 5672)\""
    told = _refusal(ConnectionOpenAborted(said), Parameters())
    assert told == "unreachable: it takes connections, and does not answer"
