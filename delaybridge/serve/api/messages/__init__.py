"""Endpoints for messages: one, many, a selection, topics."""
