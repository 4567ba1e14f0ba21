"""From a folder and what its manifest says about the tokenizer to the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.model.tokenizers.base import Tokenizer
from dragoman.model.tokenizers.byte_level import ByteLevelTokenizer
from dragoman.model.tokenizers.pieces import PieceTokenizer
from dragoman.model.tokenizers.sentence_piece import SentencePieceTokenizer
from dragoman.model.tokenizers.symbols import SymbolTokenizer
from dragoman.model.vocab import SpecialIds

_KINDS: dict[str, type[Tokenizer]] = {
    kind.kind: kind for kind in (SentencePieceTokenizer, PieceTokenizer, ByteLevelTokenizer, SymbolTokenizer)
}


def load_tokenizer(folder: Path, description: dict[str, Any], special: SpecialIds) -> Tokenizer:
    """Load the tokenizer that lies in a folder.

    Args:
        folder: Of a bundle or a checkpoint.
        description: What `describe_tokenizer` wrote: the kind, its files and its settings. Empty means
            SentencePiece, the only kind of old bundles and checkpoints.
        special: Ids with a meaning.

    Raises:
        ValueError: The kind is not known, or a file is missing or is not what the kind needs.
    """
    kind = description.get("kind", SentencePieceTokenizer.kind)
    if kind not in _KINDS:
        raise ValueError(f"{folder} has a tokenizer of kind {kind!r}; this version knows {', '.join(_KINDS)}")
    settings = {name: value for name, value in description.items() if name not in ("kind", "files")}
    names = tokenizer_file_names(description)
    try:
        files = {name: (folder / name).read_bytes() for name in names}
    except OSError as error:
        raise ValueError(f"cannot read the tokenizer of {folder}: {error}") from error
    try:
        return _KINDS[kind].load(files, settings, special)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{', '.join(names)} in {folder}: not a tokenizer of kind {kind!r}: {error}") from error


def describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what a manifest says; empty for SentencePiece, which old servers can read, too."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return {}
    return {"kind": tokenizer.kind, "files": sorted(tokenizer.files()), **tokenizer.settings()}


def tokenizer_file_names(description: dict[str, Any]) -> list[str]:
    """Return the names of a tokenizer's files, in a bundle or a checkpoint."""
    return list(description.get("files", [SentencePieceTokenizer.FILE]))
