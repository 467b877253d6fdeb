"""What is accepted: every check of a message, before anything is written."""
