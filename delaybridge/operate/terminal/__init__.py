"""What all commands share: options, output, errors, progress."""
