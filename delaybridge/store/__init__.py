"""The store: keys, verbs and replies of Redis, without I/O; and the connections below them."""
