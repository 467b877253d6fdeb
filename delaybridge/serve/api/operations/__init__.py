"""Endpoints for whoever runs the bridge."""
