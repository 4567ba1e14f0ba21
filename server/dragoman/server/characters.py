"""What can be said of a text by its characters, before it is tokenized, which takes a second for a few megabytes."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from dragoman.server.errors import InvalidArgument

# Far more than a token of any text has, so that a text refused for its characters has too many tokens all the same.
PER_TOKEN = 100
# Control and format characters, spaces and separators. Not str.isprintable: it is false for private
# use and for characters newer than this Python, which are text.
_BLANK = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
_CHUNK = 4096


def is_blank(text: str) -> bool:
    """Whether a text has nothing to translate: only white space, control and zero-width characters."""
    return not any(_counts(text))


def check_characters(text: str, field: str, most_tokens: int, advice: str) -> None:
    """Refuse a text that is far too long.

    Blank characters are not counted: tokenizers drop them, or make one of many.

    Args:
        text: As sent.
        field: Its name.
        most_tokens: So many may it have; the limit is `PER_TOKEN` characters for each.
        advice: What to do if it is too long.

    Raises:
        InvalidArgument: It has more characters.
    """
    most = most_tokens * PER_TOKEN
    if len(text) <= most:
        return
    characters = 0
    for count in _counts(text):
        characters += count
        if characters > most:
            raise InvalidArgument(
                field, f"{len(text)} characters, the limit is {most}, white space not counted; {advice}"
            )


def _counts(text: str) -> Iterator[int]:
    """Yield how many characters of each part of a text are not blank.

    A part at a time: its different characters are few, and whoever asks can stop early.
    """
    for start in range(0, len(text), _CHUNK):
        part = text[start : start + _CHUNK]
        blank = [character for character in set(part) if unicodedata.category(character) in _BLANK]
        yield len(part) - sum(map(part.count, blank))
