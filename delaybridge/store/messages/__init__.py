"""The calls for messages: schedule, change, select, pull."""
