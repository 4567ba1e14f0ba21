"""Which files of a folder are a Marian model, its options and its vocabularies."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dragoman.model.errors import ImportFailed
from dragoman.model.importers.marian_options import Options, parse_options


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what both formats of Marian have."""
    parser.add_argument(
        "--vocab",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="vocabulary; twice if source and target have different ones (default: what the configuration beside the "
        "model names, or the only one there)",
    )
    parser.add_argument(
        "--codes",
        type=Path,
        metavar="FILE",
        help="codes of subword-nmt, for a .yml vocabulary; without them, texts must be cut into its symbols already",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=512,
        metavar="N",
        help="longest source and target; Marian has no limit of its own (default: 512)",
    )


def find_model(path: Path, patterns: Sequence[str]) -> Path:
    """Return the model file that a path means.

    Args:
        path: The file itself, or its folder.
        patterns: Names that it may have in a folder, the best first.

    Raises:
        ImportFailed: There is none, or more than one.
    """
    if not path.is_dir():
        if not path.exists():
            raise ImportFailed(f"{path}: there is no such file")
        return path
    for pattern in patterns:
        found = sorted(file for file in path.glob(pattern) if not file.name.endswith(".optimizer.npz"))
        if len(found) == 1:
            return found[0]
        if found:
            raise ImportFailed(f"{path}: has {len(found)} models, name one: {', '.join(f.name for f in found)}")
    raise ImportFailed(f"{path}: has no model; looked for {' and '.join(patterns)}")


def find_configuration(model: Path) -> Options | None:
    """Return what stands beside a model: how Marian is told to translate with it, or how it was trained."""
    for name in (f"{model.name}.decoder.yml", "decoder.yml", f"{model.name}.yml", "config*.yml"):
        for file in sorted(model.parent.glob(name)):
            return parse_options(file.read_bytes(), file)
    return None


def find_vocabularies(given: Sequence[Path], model: Path, configuration: Options | None) -> tuple[Path, Path]:
    """Return the vocabularies of source and target.

    Args:
        given: By the user: none, one for both, or two.
        model: Lies beside them.
        configuration: May name them.

    Raises:
        ImportFailed: They cannot be told.
    """
    folder = model.parent
    if not given and configuration is not None:
        named = [Path(name) for name in configuration.items("vocabs")]
        # Trained elsewhere, the paths are those of another machine.
        given = [next((p for p in (folder / n, folder / n.name) if p.exists()), folder / n.name) for n in named]
    if not given:
        pair = [*folder.glob("srcvocab*.spm"), *folder.glob("trgvocab*.spm")]  # as Mozilla calls them
        given = pair if len(pair) == 2 else []
    if not given:
        given = sorted({*folder.glob("vocab*.spm"), *folder.glob("vocab*.yml")})
        if len(given) > 1:
            raise ImportFailed(f"{folder}: has vocabularies {', '.join(p.name for p in given)}; name them with --vocab")
    if not given or len(given) > 2:
        raise ImportFailed(
            f"{folder}: {len(given) or 'no'} vocabularies found; give --vocab FILE, twice if source and target differ"
        )
    return given[0], given[-1]
