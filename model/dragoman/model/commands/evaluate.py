"""`dragoman evaluate`: BLEU and chrF on a TSV file.

Translates with a checkpoint, or scores translations made elsewhere (one per line, for example by
`dragoman translate` through a server).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from dragoman.model.checkpoint import load_checkpoint
from dragoman.model.data import read_pairs
from dragoman.model.errors import DataError, ModelError
from dragoman.model.evaluate import corpus_scores, translate_all

HELP = "score translations with BLEU and chrF"
ERRORS: tuple[type[Exception], ...] = (ModelError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--data", type=Path, required=True, help="TSV with sources and references")
    made = parser.add_mutually_exclusive_group(required=True)
    made.add_argument("--checkpoint", type=Path, help="translate with this checkpoint")
    made.add_argument("--translations", type=Path, help="score this file, line i for pair i")
    parser.add_argument("--limit", type=int, default=0, help="use the first N pairs only; 0 means all")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Translate if asked, then score."""
    pairs = read_pairs(args.data)[: args.limit or None]
    if args.checkpoint:
        translations = translate_all(load_checkpoint(args.checkpoint), [pair.source for pair in pairs])
    else:
        translations = _read_lines(args.translations)[: args.limit or None]
        if len(translations) != len(pairs):
            raise DataError(
                f"{args.translations} has {len(translations)} lines, {args.data} has {len(pairs)}; they must match"
            )
    scores = asdict(corpus_scores(translations, [pair.target for pair in pairs]))
    if args.json:
        print(json.dumps(scores))
    else:
        print("\n".join(f"{name.replace('_', ' '):<16} {value}" for name, value in scores.items()))
    return 0


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
