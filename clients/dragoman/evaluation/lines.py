"""A file of translations as a system: one per line, made elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.evaluation.errors import EvaluationError
from dragoman.evaluation.system import System
from dragoman.model.samples import Ending, Output


def lines_system(path: Path, *, limit: int, languages: tuple[str, str] | None = None) -> System:
    """Read a file of translations.

    Args:
        path: UTF-8 text.
        limit: Use the first lines only; 0 means all.
        languages: BCP-47 tags of the sources and of the translations, if they are known.

    Raises:
        EvaluationError: It cannot be read; from `System.translate`: it has more or fewer lines than there
            are sources.
    """
    try:
        # Only line feeds end a line: a translation may contain other separators.
        with path.open(encoding="utf-8", newline="\n") as file:
            texts = [line.rstrip("\r\n") for line in file][: limit or None]
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"cannot read {path}: {error}") from error

    def translate(sources: Sequence[str]) -> list[Output]:
        if len(texts) != len(sources):
            raise EvaluationError(
                f"{path} has {len(texts)} lines for {len(sources)} pairs of the data; line i must translate pair i"
            )
        return [Output(text, Ending.UNKNOWN) for text in texts]

    return System(f"translations {path}", translate, languages)
