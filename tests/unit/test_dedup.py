"""Ids, arguments and statements of `dedup`; what a connection is taken for."""

from __future__ import annotations

import pickle
import sqlite3
import subprocess
import sys
from typing import Any

import pika
import pytest
import redis
from redis import asyncio as redis_asyncio

from delaybridge import ConfigError, DelayBridgeError, MessageError
from delaybridge.dedup import (
    AsyncRedisDedup,
    ClaimLost,
    InProgress,
    RedisDedup,
    SqlDedup,
    message_id,
    sql_once,
)
from delaybridge.dedup.sql_connection import commits_each_statement, dialect_of, execute

NOWHERE = "redis://127.0.0.1:1/0"
LAZY = ("sqlalchemy", "psycopg", "pymysql", "django", "aiosqlite", "confluent_kafka", "kombu")


class Delivered:
    """A message of kombu, aio-pika (`headers` is an attribute) or confluent-kafka (a method)."""

    def __init__(self, headers: Any) -> None:
        self.headers = headers


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"delaybridge-id": "order-42"}, id="a mapping"),
        pytest.param({"delaybridge-id": b"order-42", "x": None}, id="bytes"),
        pytest.param([("x", b""), ("delaybridge-id", b"order-42")], id="confluent-kafka's pairs"),
        pytest.param((("delaybridge-id", b"order-42"),), id="aiokafka's pairs"),
        pytest.param([("delaybridge-id", b"old"), ("delaybridge-id", b"order-42")], id="the last"),
        pytest.param(pika.BasicProperties(headers={"delaybridge-id": "order-42"}), id="pika"),
        pytest.param(Delivered({"delaybridge-id": "order-42"}), id="an attribute"),
        pytest.param(Delivered(lambda: [("delaybridge-id", b"order-42")]), id="a method"),
    ],
)
def test_the_id_is_found_in_what_each_client_library_delivers(given: Any) -> None:
    assert message_id(given) == "order-42"


@pytest.mark.parametrize(
    "given",
    [
        None, {}, [], {"Delaybridge": "x"}, pika.BasicProperties(), Delivered(lambda: None),
        {"delaybridge-id": ""}, {"delaybridge-id": None}, {"delaybridge-id": 7},
        {"delaybridge-id": b"\xff"}, {"delaybridge-id": "\ud800"}, {"delaybridge-id": "a\0"},
        {"delaybridge-id": "é" * 128},
    ],
)  # fmt: skip
def test_a_missing_or_wrong_id_is_refused(given: Any) -> None:
    with pytest.raises(MessageError, match="^delaybridge-id: bad_id: "):
        message_id(given)


def test_an_id_may_have_255_bytes() -> None:
    assert message_id({"delaybridge-id": "x" * 255}) == "x" * 255


@pytest.mark.parametrize("kind", [RedisDedup, AsyncRedisDedup])
@pytest.mark.parametrize(
    "wrong", [{"window": 0}, {"window": "soon"}, {"processing": -1}, {"processing": True}]
)
def test_a_wrong_span_is_refused_before_anything_is_sent(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        kind(NOWHERE, **wrong)


def test_a_client_of_the_other_flavour_is_refused() -> None:
    with pytest.raises(ConfigError, match="AsyncRedisDedup"):
        RedisDedup(redis_asyncio.Redis.from_url(NOWHERE))
    with pytest.raises(ConfigError, match="is for RedisDedup"):
        AsyncRedisDedup(redis.Redis.from_url(NOWHERE))


@pytest.mark.parametrize("kind", [RedisDedup, AsyncRedisDedup])
def test_a_wrong_url_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="give a client"):
        kind("redis+cluster://127.0.0.1:1")


def test_the_key_is_the_prefix_and_the_id() -> None:
    assert RedisDedup(NOWHERE).key("order-42") == "delaybridge:dedup:order-42"
    assert RedisDedup(NOWHERE, prefix="mail").key("é") == "mail:é"


@pytest.mark.parametrize("error", [InProgress("order-42", 250), ClaimLost()])
def test_its_errors_are_of_delaybridge_and_can_be_pickled(error: Exception) -> None:
    assert isinstance(error, DelayBridgeError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("table", ["", "1st", "a b", 'a"', "a;drop", "a.b", "é", "a\n", "x" * 52])
def test_a_table_that_is_no_plain_identifier_is_refused(table: str) -> None:
    with pytest.raises(ConfigError, match="table"):
        SqlDedup(table)
    with pytest.raises(ConfigError, match="table"):
        sql_once(None, "order-42", table=table)


def test_a_wrong_consumer_is_refused() -> None:
    with pytest.raises(ConfigError, match="consumer"):
        SqlDedup(consumer="")


@pytest.mark.parametrize("wrong", [None, "sqlite://", object()])
def test_what_is_no_connection_is_refused(wrong: Any) -> None:
    with pytest.raises(MessageError, match="^connection: bad_connection: "):
        dialect_of(wrong)


def test_parameters_are_bound_by_name_in_any_order_and_more_than_once() -> None:
    connection = sqlite3.connect(":memory:")
    execute(connection, "CREATE TABLE t (a text, b text)", {})
    values = {"b": "x'; DROP TABLE t; --", "a": ":b"}
    assert execute(connection, "INSERT INTO t VALUES (:a, :b), (:b, :a)", values) == 2
    assert connection.execute("SELECT a FROM t WHERE b LIKE '%DROP%'").fetchall() == [(":b",)]
    connection.close()


def test_a_cursor_keeps_the_result_that_it_had() -> None:
    connection = sqlite3.connect(":memory:")
    cursor = connection.execute("SELECT 1")
    assert execute(cursor, "CREATE TABLE t (a text)", {}) == -1
    assert cursor.fetchall() == [(1,)]
    connection.close()


def test_autocommit_is_seen_and_refused_before_anything_is_written() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    SqlDedup().create_table(connection)
    assert commits_each_statement(connection)
    with pytest.raises(MessageError, match="no_transaction"):
        sql_once(connection, "order-42")
    connection.execute("BEGIN")
    assert not commits_each_statement(connection)
    assert sql_once(connection, "order-42")
    connection.close()


def test_no_database_library_is_imported() -> None:
    code = f"import sys, delaybridge.dedup; print(*set(sys.modules) & set({LAZY!r}))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert printed.stdout.split() == []
