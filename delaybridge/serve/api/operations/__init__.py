"""Endpoints for operators: destinations, recurring, the fleet, its numbers, health, settings."""
