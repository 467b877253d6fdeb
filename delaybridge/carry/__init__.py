"""Messages as lines of JSON: exported, and imported into another namespace, server or version."""
