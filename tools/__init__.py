"""Programs that write pages or parts of pages: `python -m tools.reference`."""
