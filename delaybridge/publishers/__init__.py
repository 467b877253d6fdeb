"""Publishers beside RabbitMQ and Kafka. The engine finds them by their entry points."""
