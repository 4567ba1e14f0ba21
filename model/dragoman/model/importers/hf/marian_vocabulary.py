"""The tokenizer and the languages of MarianMT: two SentencePiece models over one vocabulary or two."""

from __future__ import annotations

import re

from dragoman.model.importers.hf.folder import Folder, GenerationIds, check_class, id_of
from dragoman.model.importers.hf.wanted import Vocabulary, Wanted
from dragoman.model.importers.language_tags import is_tag, language_tags
from dragoman.model.languages import Languages, LanguageTokens
from dragoman.model.tokenizers.pieces import PieceTokenizer
from dragoman.model.tokenizers.side import read_vocabulary
from dragoman.model.vocab import SpecialIds

_TARGET = "target_vocab.json"
# In front of a source it names the target language, of models with several.
_CODE = re.compile(">>(.+)<<")
# "cat+oci+spa", "cat_oci_spa": all of them.
_GROUP = re.compile("[a-z]{2,3}([+_][a-z]{2,3})+")


def read_marian(folder: Folder, ids: GenerationIds, wanted: Wanted, sizes: tuple[int, int]) -> Vocabulary:
    """Read it.

    Args:
        folder: With `source.spm`, `target.spm`, `vocab.json` and perhaps `target_vocab.json`.
        ids: Of the folder.
        wanted: By the user.
        sizes: Numbers of source and target ids.

    Raises:
        ImportFailed: A file is missing, or nobody says what the model translates.
    """
    check_class(folder, "MarianTokenizer")
    shared = read_vocabulary(folder.read("vocab.json"), "vocab.json")
    separate = folder.has(_TARGET) or sizes[0] != sizes[1]
    own = read_vocabulary(folder.read(_TARGET), _TARGET) if separate else None
    target_vocabulary = shared if own is None else own
    codes = {match[1]: i for name, i in shared.items() if (match := _CODE.fullmatch(name))}
    unused = set(range(sizes[1])).difference(target_vocabulary.values())
    marked = {i for name, i in target_vocabulary.items() if _CODE.fullmatch(name)}
    special = SpecialIds(
        ids.pad,
        id_of(target_vocabulary, "<unk>"),
        ids.pad if ids.start is None else ids.start,
        ids.eos,
        tuple(sorted(unused.union(marked, ids.suppressed))),
    )
    tokenizer = PieceTokenizer.marian(
        folder.read("source.spm"),
        folder.read("target.spm"),
        shared,
        special,
        target_vocabulary=own,
        vocab_size=sizes[1],
        source_vocab_size=sizes[0],
    )
    sources = [wanted.source] if wanted.source else _named(folder, "source_lang")
    targets = {tag: LanguageTokens(before_source=(codes[code],)) for code, tag in language_tags(codes).items()}
    if not codes:
        named = [wanted.target] if wanted.target else _named(folder, "target_lang")
        targets = dict.fromkeys(named, LanguageTokens())
    wanted.pair(folder, next(iter(sources), ""), next(iter(targets), ""))
    languages = Languages(dict.fromkeys(sources, LanguageTokens()), targets)
    plain = len(sources) == len(targets) == 1 and not codes
    return Vocabulary(tokenizer, None if plain else languages, *wanted.usual(folder, languages))


def _named(folder: Folder, setting: str) -> list[str]:
    """Return the tags of the language or languages that a setting of the tokenizer names."""
    value = folder.tokenizer.get(setting)
    if not isinstance(value, str) or not value:
        return []
    codes = re.split("[+_]", value) if _GROUP.fullmatch(value) else [value]
    return [tag for tag in language_tags(codes).values() if is_tag(tag)]
