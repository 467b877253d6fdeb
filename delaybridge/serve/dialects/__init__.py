"""The HTTP of other delay queues, for their clients: one dialect a server, as serve.compat says."""
