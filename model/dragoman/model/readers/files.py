"""The files that one option of a command names: one with both sides, or one for each side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.model.errors import ConfigError, DataError
from dragoman.model.readers.formats import read_pairs, supported_formats
from dragoman.model.readers.pair import Pair
from dragoman.model.readers.record import Languages


@dataclass(frozen=True, slots=True)
class PairFiles:
    """Files of one set of pairs.

    Attributes:
        option: That named them; errors begin with it.
        paths: A file of any format, or the text files of sources and targets.
    """

    option: str
    paths: tuple[Path, ...]

    @classmethod
    def of(cls, option: str, paths: Sequence[Path]) -> PairFiles:
        """Check how many there are.

        Raises:
            ConfigError: It is not one or two.
        """
        if len(paths) not in (1, 2):
            raise ConfigError(f"{option} has {len(paths)} files; give one of {supported_formats()}")
        return cls(option, tuple(paths))

    def read(self, languages: Languages | None = None) -> Iterator[Pair]:
        """Yield the pairs, as `read_pairs` does.

        Raises:
            DataError: As `read_pairs`, and likewise at once or by the iterator.
        """
        try:
            pairs = read_pairs(
                self.paths[0], second=self.paths[1] if len(self.paths) > 1 else None, languages=languages
            )
        except DataError as error:
            raise DataError(f"{self.option}: {error}") from error
        return self._named(pairs)

    def _named(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        try:
            yield from pairs
        except DataError as error:
            raise DataError(f"{self.option}: {error}") from error

    def __str__(self) -> str:
        """Name the files."""
        return " and ".join(map(str, self.paths))
