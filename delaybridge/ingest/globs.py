"""Patterns of operators: `*` is any text, every other character is itself."""

from __future__ import annotations


def fits(text: str, pattern: str) -> bool:
    """Whether a text has the form of a pattern; the cost is in proportion to the text."""
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    *between, last = others
    at, end = len(first), len(text) - len(last)
    if at > end or not (text.startswith(first) and text.endswith(last)):
        return False
    for part in between:  # the first place will do
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
