"""Commands for destinations and recurring definitions."""
