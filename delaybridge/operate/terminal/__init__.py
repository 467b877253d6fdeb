"""Options, output, errors and progress, which all commands share."""
