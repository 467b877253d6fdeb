"""What an operator uses: the commands, the live screen, checks, metrics and views of the store."""
