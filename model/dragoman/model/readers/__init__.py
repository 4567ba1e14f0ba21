"""Streaming readers of parallel text: one file, or two, to pairs.

`read_pairs` picks the reader by the file's suffix. A reader is a generator of records: `Pair`, `Skip`
(an entry without a translation) or `Problem`; what a problem means for the whole file is decided in one
place, `formats`. Nothing here imports torch, and polib only when a .po file is read.
"""

from dragoman.model.readers.files import PairFiles
from dragoman.model.readers.formats import read_pairs, supported_formats
from dragoman.model.readers.pair import Pair

__all__ = ["Pair", "PairFiles", "read_pairs", "supported_formats"]
