"""HTTP without a word about messages: connections, endpoints, JSON, problems."""
