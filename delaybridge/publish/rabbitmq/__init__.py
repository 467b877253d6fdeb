"""Publishing to RabbitMQ: publisher confirms, `mandatory`, pipelined."""

from delaybridge.publish.rabbitmq.publisher import publisher

__all__ = ["publisher"]
