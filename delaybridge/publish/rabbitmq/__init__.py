"""Publishes to RabbitMQ, pipelined, with publisher confirms and `mandatory`."""

from delaybridge.publish.rabbitmq.publisher import RabbitMQPublisher as publisher

__all__ = ["publisher"]
