"""Commands that show how the fleet is."""
