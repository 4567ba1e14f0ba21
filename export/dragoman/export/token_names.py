"""What each id of a model is called, for engines that take and give pieces where ours takes and gives texts.

Names come from the tokenizer's own files, so that its pieces are those that people cut texts into with the
original library. An id without one gets a name that no text has, and every name is there once.
"""

from __future__ import annotations

import json
from typing import Any

import sentencepiece

from dragoman.export.errors import ExportError
from dragoman.model.languages import Languages
from dragoman.model.tokenizers import SentencePieceTokenizer, Tokenizer
from dragoman.model.vocab import SpecialIds

_SPECIAL = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>", "start": "<s>"}


def token_names(tokenizer: Tokenizer, languages: Languages | None) -> tuple[list[str], list[str]]:
    """Return the names of all source ids and of all target ids.

    EOS and the unknown piece are called the same on both sides.

    Raises:
        ExportError: The kind of tokenizer is not known here.
    """
    special = tokenizer.special
    if isinstance(tokenizer, SentencePieceTokenizer):
        names = _pieces(tokenizer.model, 0)
        return (complete(names, tokenizer.vocab_size, special, languages),) * 2
    files, settings = tokenizer.files(), tokenizer.settings()
    if tokenizer.kind == "byte-level-bpe":
        names = _by_id(json.loads(files["vocab.json"]))
        return (complete(names, tokenizer.vocab_size, special, languages),) * 2
    if tokenizer.kind not in ("pieces", "symbols"):
        raise ExportError(f"the tokenizer is of kind {tokenizer.kind!r}, whose tokens have no names in other engines")
    read = _piece_side if tokenizer.kind == "pieces" else _symbol_side
    target_side = "target" if "target" in settings else "source"
    target = complete(
        read(files, settings, target_side),
        tokenizer.vocab_size,
        special,
        languages,
        numbered="offset" in settings[target_side],
    )
    side = settings["source"]
    eos = side.get("eos", next(iter(side.get("after", ())), special.eos))
    of_source = SpecialIds(special.pad, side["unk"], special.start, eos) if "target" in settings else special
    source = complete(
        read(files, settings, "source"), tokenizer.source_vocab_size, of_source, languages, numbered="offset" in side
    )
    return _called(source, {of_source.unk: target[special.unk], of_source.eos: target[special.eos]}), target


def complete(
    names: dict[int, str], size: int, special: SpecialIds, languages: Languages | None, *, numbered: bool = False
) -> list[str]:
    """Return a name for each of `size` ids.

    Args:
        names: Known ones by id.
        size: Number of ids.
        special: Are called `</s>`, `<unk>`, `<pad>` and `<s>` where they have no name.
        languages: A token of one language is called after it where it has no name, such as `__de__`.
        numbered: Names of special ids are not the model's own: it counts pieces from another number.
    """
    found: list[str | None] = [names.get(i) for i in range(size)]
    ids = {getattr(special, field): name for field, name in reversed(_SPECIAL.items())}
    for i, name in ids.items():
        if i < size and (numbered or not found[i]):
            found[i] = name
    if languages is not None:
        for i, tags in _language_ids(languages).items():
            if i < size and not found[i] and len(tags) == 1:
                found[i] = f"__{next(iter(tags))}__"
    first: dict[str, int] = {}
    for i in (*ids, *range(size)):  # a special id keeps its name
        if i < size and found[i]:
            first.setdefault(str(found[i]), i)
    return [name if name and first[name] == i else f"<id {i}>" for i, name in enumerate(found)]


def _called(names: list[str], wanted: dict[int, str]) -> list[str]:
    """Return `names` with some ids called as wanted; who had such a name before loses it."""
    taken = set(wanted.values())
    return [wanted.get(i, f"<id {i}>" if name in taken else name) for i, name in enumerate(names)]


def _language_ids(languages: Languages) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for side in (languages.sources, languages.targets):
        for tag, tokens in side.items():
            for i in (*tokens.before_source, *tokens.after_source, *tokens.first_target):
                found.setdefault(i, set()).add(tag)
    return found


def _piece_side(files: dict[str, bytes], settings: dict[str, Any], name: str) -> dict[int, str]:
    side = settings[name]
    if "offset" in side:
        return _pieces(files[side["model"]], side["offset"])
    return _by_id(json.loads(files[side["vocabulary"]]))


def _symbol_side(files: dict[str, bytes], _settings: dict[str, Any], name: str) -> dict[int, str]:
    return {i: symbol for i, symbol in enumerate(json.loads(files[f"{name}.symbols.json"])) if symbol}


def _pieces(model: bytes, offset: int) -> dict[int, str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return {i + offset: processor.id_to_piece(i) for i in range(processor.get_piece_size())}


def _by_id(vocabulary: dict[str, int]) -> dict[int, str]:
    return {i: name for name, i in vocabulary.items()}
