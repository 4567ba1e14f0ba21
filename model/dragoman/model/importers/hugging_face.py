"""Folders of the library transformers: MarianMT, M2M100, NLLB, BART, mBART, T5 and mT5.

Everything comes from the folder's own files; transformers itself is not needed. A setting that changes the
computation in a way that we do not support is refused by name and value; what only concerns training, or how
`generate` searches by default, is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.config import ModelConfig
from dragoman.model.errors import ConfigError, ImportFailed
from dragoman.model.importers.hf import bart, t5
from dragoman.model.importers.hf.bart_vocabulary import read_bart
from dragoman.model.importers.hf.fairseq_vocabulary import read_m2m100, read_mbart
from dragoman.model.importers.hf.folder import Folder, GenerationIds
from dragoman.model.importers.hf.marian_vocabulary import read_marian
from dragoman.model.importers.hf.t5_vocabulary import read_t5
from dragoman.model.importers.hf.values import Values
from dragoman.model.importers.hf.wanted import Vocabulary, Wanted
from dragoman.model.transformer import Transformer

SUMMARY = "Hugging Face: a folder of MarianMT (OPUS-MT), M2M100, NLLB, BART, mBART, T5 or mT5"

_VOCABULARIES: dict[str, Callable[[Folder, GenerationIds, Wanted, tuple[int, int]], Vocabulary]] = {
    "marian": read_marian,
    "m2m_100": read_m2m100,
    "bart": read_bart,
    "mbart": read_mbart,
    "t5": read_t5,
    "mt5": read_t5,
}
_T5_TOKENS = 512
# Tokenizers without a limit have a number with thirty digits.
_LIMITED = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this format."""
    parser.add_argument(
        "--source-language", metavar="TAG", help="BCP-47 tag, where the folder does not say it or says several"
    )
    parser.add_argument("--target-language", metavar="TAG", help="likewise")
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="longest source and target in tokens; default: the model's positions, or 512 where they have no limit",
    )
    parser.add_argument("--prefix", metavar="TEXT", help='T5: in front of every source, "translate English to German:"')


def import_model(path: Path, arguments: argparse.Namespace) -> Checkpoint:
    """Read a model.

    Args:
        path: The folder.
        arguments: As `add_arguments` declares them.

    Raises:
        ImportFailed: It cannot be read, or computes something that we do not; says everything that is wrong.
    """
    folder = Folder(path)
    family = folder.config.get("model_type")
    if family not in _VOCABULARIES:
        raise ImportFailed(f"{path}: model_type is {family!r}; supported are {', '.join(_VOCABULARIES)}")
    if arguments.prefix is not None and family not in t5.FAMILIES:
        raise ImportFailed(f"{path}: --prefix is for T5 and mT5, this is {family}")
    wanted = Wanted.of(arguments)
    ids = folder.generation_ids()
    try:
        config = _read_config(folder, family, ids, arguments.max_tokens)
        sizes = config.source_vocab_size or config.vocab_size, config.vocab_size
        vocabulary = _VOCABULARIES[family](folder, ids, wanted, sizes)
        model = _build_model(folder, family, config)
    except (ConfigError, ValueError) as error:  # of the tokenizers
        raise ImportFailed(f"{path}: {error}") from error
    return Checkpoint(path, model, vocabulary.tokenizer, vocabulary.source, vocabulary.target, 0, vocabulary.languages)


def _read_config(folder: Folder, family: str, ids: GenerationIds, asked: int | None) -> ModelConfig:
    origin = folder.path / "config.json"
    values = Values(folder.config, origin)
    if folder.config.get("quantization_config"):
        values.refuse("quantization_config", folder.config["quantization_config"])
    if asked is not None and asked < 2:
        raise ImportFailed(f"--max-tokens is {asked}; a text and its end need 2")
    said = folder.tokenizer.get("model_max_length")
    limit = said if isinstance(said, int) and 0 < said < _LIMITED else None
    if family in t5.FAMILIES:
        return t5.read_config(family, values, max_tokens=asked or limit or _T5_TOKENS)
    positions = values.count("max_position_embeddings")
    if asked is not None and asked > positions and bart.FAMILIES[family].positions == "learned":
        raise ImportFailed(f"{folder.path}: --max-tokens is {asked}; the model has learned {positions} positions")
    max_tokens = asked or min(positions, limit or positions)
    return bart.read_config(family, values, max_tokens=max(max_tokens, 1), pad=ids.pad)


def _build_model(folder: Folder, family: str, config: ModelConfig) -> Transformer:
    if family in t5.FAMILIES:
        return t5.build_model(config, folder.tensors(), folder.path)
    tied = folder.config.get("tie_word_embeddings") is not False
    return bart.build_model(config, folder.tensors(), folder.path, tied_output=tied)
