"""The tokenizer of BART, which is RoBERTa's: bytes, merged."""

from __future__ import annotations

from dragoman.model.importers.hf.folder import Folder, GenerationIds, check_class, id_of
from dragoman.model.importers.hf.wanted import Vocabulary, Wanted
from dragoman.model.languages import Languages, LanguageTokens
from dragoman.model.tokenizers.byte_level import ByteLevelTokenizer
from dragoman.model.tokenizers.side import read_vocabulary
from dragoman.model.vocab import SpecialIds

_VOCABULARY, _MERGES, _BOTH = "vocab.json", "merges.txt", "tokenizer.json"


def read_bart(folder: Folder, ids: GenerationIds, wanted: Wanted, sizes: tuple[int, int]) -> Vocabulary:
    """Read it.

    Args:
        folder: With `vocab.json` and `merges.txt`, or with `tokenizer.json`.
        ids: Of the folder.
        wanted: By the user; BART's files do not name languages.
        sizes: Numbers of source and target ids.

    Raises:
        ImportFailed: A file is missing, or nobody says what the model translates.
    """
    # The last two are names for whatever tokenizer.json says.
    check_class(folder, "BartTokenizer", "RobertaTokenizer", "PreTrainedTokenizer", "TokenizersBackend")
    source, target = wanted.pair(folder)
    names = folder.added_tokens()
    two_files = folder.has(_VOCABULARY) and folder.has(_MERGES)
    if two_files:
        names |= read_vocabulary(folder.read(_VOCABULARY), _VOCABULARY)
    forced = () if ids.forced is None else (ids.forced,)
    # One that is not made to begin its texts with <s> does so by itself, and has to be let.
    suppressed = {*ids.suppressed, *forced, *(i for name, i in names.items() if name == "<mask>")}
    special = SpecialIds(
        ids.pad,
        id_of(names, "<unk>"),
        ids.eos if ids.start is None else ids.start,
        ids.eos,
        tuple(sorted(suppressed)),
    )
    before = (0 if ids.bos is None else ids.bos,)
    if two_files:
        tokenizer = ByteLevelTokenizer.from_files(
            folder.read(_VOCABULARY),
            folder.read(_MERGES),
            special,
            before=before,
            prefix_space=bool(folder.tokenizer.get("add_prefix_space")),
            vocab_size=sizes[1],
        )
    else:
        tokenizer = ByteLevelTokenizer.from_tokenizer_json(
            folder.read(_BOTH), special, before=before, vocab_size=sizes[1]
        )
    languages = Languages({source: LanguageTokens()}, {target: LanguageTokens(first_target=forced)})
    return Vocabulary(tokenizer, languages if forced else None, source, target)
