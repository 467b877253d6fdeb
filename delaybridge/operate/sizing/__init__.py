"""How much of Redis, workers, database and brokers a load needs, from measured figures."""
