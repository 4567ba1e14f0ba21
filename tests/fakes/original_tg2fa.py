"""Run as a script beside the package tg2fa-translit: writes down what it makes of texts.

    original_tg2fa.py TEXTS RESULT

TEXTS is a JSON list; RESULT gets the package's vocabularies, its own translation of each text, and the greedy
tokens and four hypotheses that its model gives.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.model.vocab import SpecialIds
from tests.fakes.references import beam_of, greedy_of


class Package:
    """The package's model."""

    def __init__(self) -> None:
        """Load it."""
        self.model: Any = importlib.import_module("tg2fa_translit.transformer").transformer

    def logits(self, source: list[int], target: list[int]) -> Tensor:
        """Return [T, V] of one source and one target."""
        ids = np.array(source)[:, None]
        memory = self.model.encode(ids, np.zeros((len(source), len(source)), bool))
        mask = np.triu(np.ones((len(target), len(target)), bool), 1)
        states = self.model.decode(np.array(target)[:, None], memory, mask)
        logits: Tensor = self.model.generator(states)
        return logits[0]


def main(texts: Path, result: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    decode: Any = importlib.import_module("tg2fa_translit.decode")
    convert: Any = importlib.import_module("tg2fa_translit.convert").convert
    lines = json.loads(texts.read_text("utf-8"))
    sources = [[2, *(decode.tg_voc[c] for c in line.lower()), 3] for line in lines]
    special = SpecialIds(pad=1, unk=0, start=2, eos=3)
    package = Package()
    found = {
        "tg": decode.tg_keys,
        "fa": decode.fa_values,
        "texts": [convert(line) for line in lines],
        "sources": sources,
        "greedy": greedy_of(package, sources, special, extra=9),
        "beam": beam_of(package, sources, special, extra=9),
    }
    result.write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
