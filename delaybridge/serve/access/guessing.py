"""Whether a token is easy to guess; of a long one the beginning tells."""

from __future__ import annotations

import re

_CHARS, _KINDS, _LEFT = 16, 8, 10  # at least
_LOOKED_AT = 128  # characters; a token whose beginning is hard to guess is hard to guess
_AS_LETTERS = str.maketrans("0134578@$!|", "oieastbasil")
_WORDS = """
    password passwort passwd passphrase secret token bearer apikey access admin administrator root
    superuser user username login letmein welcome changeme change default example sample test
    testing demo dummy master guest public private internal local localhost production staging
    prod develop development company service server client worker producer consumer queue broker
    delay bridge delaybridge rabbitmq rabbit kafka redis webhook console viewer reader writer read
    write shop this that your here please open sesame monkey dragon sunshine princess football
    baseball superman batman iloveyou trustno shadow michael jordan hunter summer winter spring
    autumn hello world super company name
    january february march april june july august september october november december monday friday
""".split()
_WORD = re.compile("|".join(sorted(_WORDS, key=len, reverse=True)))
_YEAR = re.compile(r"(?:19|20)[0-9]{2}")
_LETTERS = re.compile(r"[a-z]{4,}")
_ROWS = (
    *("qwertyuiop", "asdfghjkl", "zxcvbnm", "1234567890", "qwertzuiop", "azertyuiop"),
    *("1qaz2wsx3edc4rfv5tgb6yhn7ujm8ik", "1q2w3e4r5t6y7u8i9o0p"),  # columns, and to and fro
)
# The most frequent pairs of letters in English words, which are few of all pairs.
_PAIRS = frozenset(
    """
    th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co
    me de hi ri ro ic ne ea ra ce li ch ll be ma si om ur ca el ta la ns di fo ho pe ec pr no ct us
    ac ot il tr ly nc et ut ss so rs un lo wa ge ie wh ee wi em ad ol rt po we na ul ni ts mo ow pa
    im mi ai sh ir su id os iv ia am fi ci vi pl ig tu ev ld ry mp fe bl ab gh ty op wo sa ay ex ke
    ph ep ff ra bo up ap tt ag ga ru nn mm pp
    """.split()
)
_COMMON = 0.75  # of the pairs of a word; of letters at random it is a quarter


def weakness(token: str) -> str | None:
    """The rule by which it is easy to guess; None if it is not. No part of it is shown."""
    if len(token) < _CHARS:
        return f"the token has {len(token)} characters; use {_CHARS} random ones or more"
    if len(set(token)) < _KINDS:
        return f"the token is easy to guess: it has {len(set(token))} different characters"
    left = _left(token[:_LOOKED_AT].lower())
    if left < _LEFT:
        what = "without common words, runs as 1234, years and repetitions"
        return f"the token is easy to guess: {what} it is no longer than {left} characters"
    return None


def _left(text: str) -> int:
    """Its length if a known word, a run or a repetition counted as one character, and of the
    letters of what reads as a word each second one."""
    words = _known_words(text)
    at = left = 0
    while at < len(text):
        known = max(words.get(at, 0), _run(text, at), _repetition(text, at))
        like = (
            0 if known else _like_a_word(text, at, min((n for n in words if n > at), default=999))
        )
        left += (like + 1) // 2 or 1
        at += known or like or 1
    return left


def _known_words(text: str) -> dict[int, int]:
    """Where known words are -> how long they are."""
    found: dict[int, int] = {}
    for form in (text, text.translate(_AS_LETTERS)):
        for word in (*_WORD.finditer(form), *_YEAR.finditer(form)):
            found[word.start()] = max(found.get(word.start(), 0), len(word[0]))
    return found


def _run(text: str, at: int) -> int:
    """How many characters go on as 1234, dcba or aaaa, or lie side by side; 0 if less than 3."""
    some = text[at : at + 3]
    if len(some) < 3:
        return 0
    step, end = ord(some[1]) - ord(some[0]), at + 1
    while abs(step) <= 1 and end < len(text) and ord(text[end]) - ord(text[end - 1]) == step:
        end += 1
    if (row := next((row for row in _ROWS if some in row), "")) and end < at + 3:
        while end < len(text) and text[at : end + 1] in row:
            end += 1
    return end - at if end >= at + 3 else 0


def _repetition(text: str, at: int) -> int:
    """How many characters are there already, before; 0 if less than 4."""
    end = at + 4
    while end <= len(text) and text.find(text[at:end], 0, at) >= 0:
        end += 1
    return end - 1 - at if end > at + 4 else 0


def _like_a_word(text: str, at: int, before: int) -> int:
    """How many letters read as a word; 0 if these do not. before: where a known word begins."""
    found = _LETTERS.match(text, at, before)
    if not found:
        return 0
    pairs = [text[n : n + 2] for n in range(at, found.end() - 1)]
    return len(pairs) + 1 if sum(p in _PAIRS for p in pairs) >= _COMMON * len(pairs) else 0
