"""The words of the console in other languages than English.

Pages and alerts are written in English. A sentence is looked up in `zh.json`; what is not there
stays English, and a test says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec

LANGUAGES = {"en": "English", "zh": "中文"}
_ACCEPTED = re.compile(r"([a-zA-Z]{2})[a-zA-Z-]*(?:;q=([0-9.]+))?")


def language_of(headers: Mapping[str, str], chosen: str) -> str:
    """`en` or `zh`: as chosen, else as the browser asks."""
    if chosen in LANGUAGES:
        return chosen
    found = _ACCEPTED.findall(headers.get("accept-language", ""))
    asked = sorted(found, key=lambda each: -_weight(each[1]))
    return next((name.lower() for name, _ in asked if name.lower() in LANGUAGES), "en")


@cache
def words(language: str) -> Mapping[str, str]:
    """English -> this language."""
    if language == "en":
        return {}
    text = (files("delaybridge.serve.console") / f"{language}.json").read_bytes()
    found: dict[str, str] = msgspec.json.decode(text, type=dict[str, str])
    return found


def said(language: str, text: str, /, **values: object) -> str:
    """A sentence in this language, with its values."""
    found = words(language).get(text, text)
    return found.format(**values) if values else found


def _weight(text: str) -> float:
    try:
        return float(text) if text else 1.0
    except ValueError:
        return 0.0
