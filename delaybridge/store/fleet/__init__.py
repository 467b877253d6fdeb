"""What workers tell one another, and who asked for what."""
