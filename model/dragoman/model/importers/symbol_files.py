"""Files that list the symbols of a vocabulary by id, and what becomes of them here."""

from __future__ import annotations

import json
from pathlib import Path

from dragoman.model.errors import ImportFailed


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        ImportFailed: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ImportFailed(f"{path}: cannot be read: {error.strerror}") from error


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file; only line feeds end one, as a symbol may be any other character.

    Raises:
        ImportFailed: It cannot be read.
    """
    try:
        text = read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ImportFailed(f"{path}: is not UTF-8: {error}") from error
    return text.removesuffix("\n").split("\n")


def read_symbol_file(path: Path) -> tuple[str, ...]:
    """Read symbols: a JSON list, a JSON object of symbol and number, or one in each line.

    Raises:
        ImportFailed: It is none of these.
    """
    if path.suffix != ".json":
        return tuple(read_lines(path))
    try:
        content = json.loads(read_bytes(path))
    except ValueError as error:
        raise ImportFailed(f"{path}: cannot be read as JSON: {error}") from error
    if isinstance(content, dict) and sorted(content.values(), key=str) == sorted(range(len(content)), key=str):
        content = sorted(content, key=lambda symbol: int(content[symbol]))
    if not isinstance(content, list) or not all(isinstance(symbol, str) for symbol in content):
        raise ImportFailed(
            f"{path}: holds no list of texts, and no object that gives each symbol one of the numbers from 0"
        )
    return tuple(content)
