"""The tokenizers and the languages of M2M100, NLLB, mBART and mBART-50: a code for each language."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from dragoman.model.errors import ImportFailed
from dragoman.model.importers.hf.folder import Folder, GenerationIds, check_class, id_of
from dragoman.model.importers.hf.wanted import Vocabulary, Wanted
from dragoman.model.importers.language_tags import language_tags, listing
from dragoman.model.languages import Languages, LanguageTokens
from dragoman.model.tokenizers.base import Tokenizer
from dragoman.model.tokenizers.pieces import PieceTokenizer
from dragoman.model.tokenizers.segmenter import read_model
from dragoman.model.tokenizers.side import read_vocabulary
from dragoman.model.vocab import SpecialIds

_SPM = "sentencepiece.bpe.model"
# In the order of their ids.
_M2M = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht "
        "hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps "
        "pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
_CC25 = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP "
    "nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MBART = {
    "MBartTokenizer": _CC25,
    "MBart50Tokenizer": (
        f"{_CC25} af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX "
        "sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
    ),
}
_NLLB_CODE = re.compile("[a-z]{3}_[A-Z][a-z]{3}")
# fairseq's own tokens stand in front of the pieces, and SentencePiece's three become four.
_PAD, _EOS, _UNK, _OFFSET = 1, 2, 3, 1


def read_m2m100(folder: Folder, ids: GenerationIds, wanted: Wanted, sizes: tuple[int, int]) -> Vocabulary:
    """Read that of M2M100 or NLLB.

    Args:
        folder: With `sentencepiece.bpe.model`, and `vocab.json` if it is M2M100.
        ids: Of the folder.
        wanted: By the user.
        sizes: Numbers of source and target ids.

    Raises:
        ImportFailed: A file is missing, or nobody says what the model translates.
    """
    name = folder.tokenizer_class or ("M2M100Tokenizer" if folder.has("vocab.json") else "NllbTokenizer")
    check_class(folder, "M2M100Tokenizer", "NllbTokenizer", name=name)
    model = folder.read(_SPM)
    if name == "M2M100Tokenizer":
        vocabulary = read_vocabulary(folder.read("vocab.json"), "vocab.json")
        kind = folder.tokenizer.get("language_codes") or "m2m100"
        if kind not in _M2M:
            raise ImportFailed(f"{folder.path}: language_codes is {kind!r}; supported are {', '.join(_M2M)}")
        codes = {code: len(vocabulary) + number for number, code in enumerate(_M2M[kind].split())}
        unused = set(range(sizes[1])).difference(vocabulary.values())
        special = _special(ids, ids.start, id_of(vocabulary, "<unk>"), unused)
        tokenizer = PieceTokenizer.m2m100(model, vocabulary, special, vocab_size=sizes[1])
        return _of_many(folder, tokenizer, codes, ids, wanted)
    tokenizer = _counted(folder, model, ids, sizes[1], ids.start)
    codes = _ids_of(folder, model, [code for code in folder.special_names() if _NLLB_CODE.fullmatch(code)])
    codes |= {code: i for code, i in folder.added_tokens().items() if _NLLB_CODE.fullmatch(code)}
    if not codes:
        raise ImportFailed(f"{folder.path}: names no language codes; tokenizer.json or special_tokens_map.json should")
    return _of_many(folder, tokenizer, codes, ids, wanted, behind=bool(folder.tokenizer.get("legacy_behaviour")))


def read_mbart(folder: Folder, ids: GenerationIds, wanted: Wanted, sizes: tuple[int, int]) -> Vocabulary:
    """Read that of mBART or mBART-50; arguments and errors are those of `read_m2m100`."""
    name = folder.tokenizer_class or "MBartTokenizer"
    check_class(folder, *_MBART, name=name)
    model = folder.read(_SPM)
    codes = _ids_of(folder, model, _MBART[name].split())
    if name == "MBart50Tokenizer":
        return _of_many(folder, _counted(folder, model, ids, sizes[1], ids.start), codes, ids, wanted)
    # The first mBART starts its decoder with the code of the target language: a checkpoint has one target.
    tags = language_tags(codes)
    starts = {tags[code]: i for code, i in codes.items()}
    target = next((tag for tag, i in starts.items() if i == ids.start), wanted.target)
    start = starts.get(target) if ids.start is None else ids.start
    if not target or start is None:
        said = f"--target-language is {target!r}" if target else "the folder does not say the target language"
        raise ImportFailed(f"{folder.path}: {said}; give --target-language, one of {listing(starts)}")
    first = () if ids.forced is None else (ids.forced,)
    languages = Languages(
        {tag: LanguageTokens(after_source=(i,)) for tag, i in starts.items()},
        {target: LanguageTokens(first_target=first)},
    )
    tokenizer = _counted(folder, model, ids, sizes[1], start)
    return Vocabulary(tokenizer, languages, *wanted.usual(folder, languages, _set_to(folder, "src_lang", tags)))


def _of_many(
    folder: Folder,
    tokenizer: Tokenizer,
    codes: Mapping[str, int],
    ids: GenerationIds,
    wanted: Wanted,
    *,
    behind: bool = False,
) -> Vocabulary:
    """Return a vocabulary whose sources have their code in front or `behind`, and whose targets begin with theirs."""
    tags = language_tags(codes)
    languages = Languages(
        {
            tags[code]: LanguageTokens(after_source=(i,)) if behind else LanguageTokens(before_source=(i,))
            for code, i in codes.items()
        },
        {tags[code]: LanguageTokens(first_target=(i,)) for code, i in codes.items()},
    )
    source = _set_to(folder, "src_lang", tags)
    target = next((tags[code] for code, i in codes.items() if i == ids.forced), _set_to(folder, "tgt_lang", tags))
    return Vocabulary(tokenizer, languages, *wanted.usual(folder, languages, source, target))


def _counted(folder: Folder, model: bytes, ids: GenerationIds, size: int, start: int | None) -> PieceTokenizer:
    """Return a tokenizer whose ids are those of the model's pieces, counted from 1."""
    if (ids.pad, ids.eos) != (_PAD, _EOS):
        raise ImportFailed(
            f"{folder.path}: pad_token_id is {ids.pad} and eos_token_id is {ids.eos}; with {_SPM} they are {_PAD} and "
            f"{_EOS}"
        )
    pieces = len(read_model(model, _SPM).pieces)
    # Language codes, the mask and unused entries come behind the pieces.
    special = _special(ids, start, _UNK, range(pieces + _OFFSET, size))
    return PieceTokenizer.fairseq(model, special, vocab_size=size)


def _special(ids: GenerationIds, start: int | None, unk: int, suppressed: Collection[int]) -> SpecialIds:
    bos = () if ids.bos is None else (ids.bos,)
    return SpecialIds(
        ids.pad, unk, ids.eos if start is None else start, ids.eos, tuple(sorted({*suppressed, *ids.suppressed, *bos}))
    )


def _ids_of(folder: Folder, model: bytes, codes: Collection[str]) -> dict[str, int]:
    """Return the ids of language codes: as a file says, else behind the pieces in their order."""
    added = folder.added_tokens()
    behind = len(read_model(model, _SPM).pieces) + _OFFSET
    return {code: added.get(code, behind + number) for number, code in enumerate(codes)}


def _set_to(folder: Folder, setting: str, tags: Mapping[str, str]) -> str:
    """Return the language that the tokenizer is set to, or ""."""
    return tags.get(str(folder.tokenizer.get(setting)), "")
