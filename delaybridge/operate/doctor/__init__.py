"""Checks of everything a deployment needs: what was found, and what to change."""
