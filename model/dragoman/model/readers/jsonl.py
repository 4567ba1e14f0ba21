"""One JSON object per line: `source` and `target`, or Hugging Face's `translation` by language."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dragoman.model.readers.language import choose_languages
from dragoman.model.readers.lines import read_lines
from dragoman.model.readers.record import LANGUAGES_NEEDED, Languages, Problem, Record, pair_or_problem


def read_jsonl(path: Path, languages: Languages | None) -> Iterator[Record]:
    """Yield the pair of each line.

    Args:
        path: The file.
        languages: Source and target; needed for objects with `translation`.
    """
    for line in read_lines(path):
        if isinstance(line, Problem):
            yield line
            continue
        where = f"line {line.number}"
        try:
            texts = _texts(json.loads(line.text, parse_int=float), languages)
        except json.JSONDecodeError as error:
            yield Problem(path, where, f"not JSON: {error.msg} at column {error.colno}")
        except RecursionError:
            yield Problem(path, where, "not usable JSON: too many brackets inside each other")
        except ValueError as error:
            yield Problem(path, where, str(error))
        except _LanguagesNeededError as error:
            yield Problem(path, where, str(error), final=True)
            return
        else:
            yield pair_or_problem(path, where, *texts)


# JSON can write what no text file can hold, and what the tokenizer would stumble over.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


class _LanguagesNeededError(Exception):
    """The same for every line, so reported once."""


def _texts(value: Any, languages: Languages | None) -> list[str]:
    """Return source, target and origin.

    Raises:
        ValueError: The object has another form.
        _LanguagesNeededError: It has texts by language, and nobody said which ones to take.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{_kind(value)} instead of an object")
    if "translation" in value and not {"source", "target"} & set(value):
        if not isinstance(value["translation"], dict):
            raise ValueError(f'"translation" is {_kind(value["translation"])} instead of an object')
        if languages is None:
            raise _LanguagesNeededError(LANGUAGES_NEEDED)
        chosen = choose_languages(languages, value["translation"])
        if chosen is None:
            raise ValueError(f'"translation" lacks {languages[0]} or {languages[1]}')
        return [_text(value["translation"], key) for key in chosen]
    missing = [key for key in ("source", "target") if key not in value]
    if missing:
        raise ValueError(f"lacks {' and '.join(missing)}")
    origin = [_text(value, "origin")] if value.get("origin") is not None else []
    return [_text(value, "source"), _text(value, "target"), *origin]


def _text(value: dict[str, Any], key: str) -> str:
    text = value[key]
    if not isinstance(text, str):
        raise ValueError(f'"{key}" is {_kind(text)} instead of a text')
    if _NO_TEXT.search(text):
        raise ValueError(f'"{key}" holds an escaped zero byte or half a surrogate pair')
    return text


def _kind(value: Any) -> str:
    """Name the JSON type of a value; the value itself is somebody's text."""
    if value is None:
        return "null"
    return {dict: "an object", list: "an array", str: "a text", bool: "true or false"}.get(type(value), "a number")
