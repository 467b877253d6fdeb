"""The endpoints of the HTTP API."""
