"""The tokenizer of T5 and mT5, and the texts that tell them what to do ("translate English to German: ")."""

from __future__ import annotations

import re
from collections.abc import Mapping

import sentencepiece

from dragoman.model.errors import ImportFailed
from dragoman.model.importers.hf.folder import Folder, GenerationIds, check_class
from dragoman.model.importers.hf.wanted import Vocabulary, Wanted
from dragoman.model.languages import Languages, LanguageTokens
from dragoman.model.tokenizers.pieces import PieceTokenizer
from dragoman.model.tokenizers.segmenter import read_model
from dragoman.model.vocab import SpecialIds

_SPM = "spiece.model"
_TASK = re.compile("translation_([a-z]{2,3})_to_([a-z]{2,3})")
_EXTRA = re.compile("▁?<extra_id_[0-9]+>")


def read_t5(folder: Folder, ids: GenerationIds, wanted: Wanted, sizes: tuple[int, int]) -> Vocabulary:
    """Return that of T5 or mT5.

    Args:
        folder: With `spiece.model`.
        ids: Of the folder.
        wanted: By the user.
        sizes: Numbers of source and target ids.

    Raises:
        ImportFailed: The tokenizer is another one, or nobody says what to translate.
    """
    check_class(folder, "T5Tokenizer", "MT5Tokenizer")
    model = folder.read(_SPM)
    proto = read_model(model, str(folder.path / _SPM))
    extra = [i for i, piece in enumerate(proto.pieces) if _EXTRA.fullmatch(piece.piece)]
    suppressed = {*ids.suppressed, *extra, *range(len(proto.pieces), sizes[1])}
    unk = proto.trainer_spec.unk_id
    special = SpecialIds(ids.pad, unk, ids.pad if ids.start is None else ids.start, ids.eos, tuple(sorted(suppressed)))
    tokenizer = PieceTokenizer.t5(model, special, vocab_size=sizes[1])
    languages, source, target = _languages(folder, wanted, model)
    return Vocabulary(tokenizer, languages, source, target)


def _languages(folder: Folder, wanted: Wanted, model: bytes) -> tuple[Languages | None, str, str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    def tokens(prefix: str) -> LanguageTokens:
        # White space ends a piece, so these ids and those of a text behind a space are those of both in one.
        return LanguageTokens(before_source=tuple(processor.encode(prefix.strip())))

    tasks = _tasks(folder)
    pair = wanted.source, wanted.target
    if wanted.prefix is not None:
        tasks = {wanted.pair(folder): wanted.prefix}
    elif all(pair) and tasks:
        if pair not in tasks:
            raise ImportFailed(
                f"{folder.path}: names no task from {pair[0]} to {pair[1]}, only {_shown(tasks)}; give --prefix TEXT, "
                'or --prefix "" if sources have none'
            )
        tasks = {pair: tasks[pair]}
    elif not tasks:
        tasks = {wanted.pair(folder): ""}
    targets: dict[str, LanguageTokens] = {}
    for (_, target), prefix in tasks.items():
        if targets.setdefault(target, tokens(prefix)) != tokens(prefix):
            raise ImportFailed(
                f"{folder.path}: how to ask for {target} depends on the source: {_shown(tasks)}; choose a pair with "
                "--source-language and --target-language"
            )
    languages = Languages({source: LanguageTokens() for source, _ in tasks}, targets)
    plain = len(tasks) == 1 and not any(token.before_source for token in targets.values())
    return None if plain else languages, *wanted.usual(folder, languages)


def _tasks(folder: Folder) -> dict[tuple[str, str], str]:
    """Return the prefix of each pair of languages that `config.json` names."""
    tasks = folder.config.get("task_specific_params")
    found = {}
    for name, task in (tasks if isinstance(tasks, Mapping) else {}).items():
        match = _TASK.fullmatch(name)
        if match and isinstance(task, Mapping) and isinstance(task.get("prefix"), str):
            found[match[1], match[2]] = task["prefix"]
    return found


def _shown(tasks: Mapping[tuple[str, str], str]) -> str:
    return ", ".join(f"{source}-{target}" for source, target in tasks)
