"""The front: a proxy of AMQP 0-9-1 that gives stock RabbitMQ the exchange `x-delayed-message`."""
