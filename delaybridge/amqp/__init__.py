"""AMQP 0-9-1 as bytes: header tables, content headers, frames and the connection."""
