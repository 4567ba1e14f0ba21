"""Pieces with ids of their own: the ids and texts of the Hugging Face tokenizer of each family."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from dragoman.model.tokenizers import PieceSide, PieceTokenizer, describe_tokenizer, load_tokenizer
from dragoman.model.vocab import SpecialIds
from tests.fakes.tokenizer_texts import (
    NAMES,
    in_threads,
    random_ids,
    reloaded,
    sentence_piece,
    streamed,
    texts,
)


@dataclass(frozen=True)
class Family:
    """Both tokenizers of one kind of checkpoint."""

    ours: PieceTokenizer
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    pieces: int  # ids below are pieces or special tokens, those from there on language tokens, masks, nothing
    reserved: frozenset[int]  # source ids that no text has, EOS among them
    unlike: frozenset[int] = frozenset()  # ids that it decodes wrongly


def pieces_of(model: bytes) -> list[str]:
    """Return the pieces of a SentencePiece model but its special ones."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    numbers = range(processor.get_piece_size())
    return [processor.id_to_piece(i) for i in numbers if not processor.is_control(i) and not processor.is_unknown(i)]


def numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


@functools.cache
def unigram(size: int = 400) -> bytes:
    return sentence_piece(size, model_type="unigram")


@functools.cache
def bpe() -> bytes:
    return sentence_piece(model_type="bpe")


@functools.cache
def t5_model() -> bytes:
    return sentence_piece(model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)


@functools.cache
def marian_vocabulary() -> dict[str, int]:
    return numbered(["</s>", "<unk>", *pieces_of(unigram()), *pieces_of(unigram(300)), ">>fra<<", "<pad>"])


def marian_special(vocabulary: dict[str, int]) -> SpecialIds:
    pad = vocabulary["<pad>"]
    return SpecialIds(pad=pad, unk=vocabulary["<unk>"], start=pad, eos=vocabulary["</s>"])


def m2m_vocabulary() -> dict[str, int]:
    return numbered(["<s>", "<pad>", "</s>", "<unk>", *pieces_of(bpe())])


def fairseq_special(pieces: int, size: int) -> SpecialIds:
    return SpecialIds(pad=1, unk=3, start=2, eos=2, suppressed=(0, *range(pieces, size)))


def reserved_ids(special: SpecialIds) -> frozenset[int]:
    return frozenset({special.pad, special.start, special.eos, *special.suppressed})


def text_of(theirs: Any) -> Callable[[list[int]], str]:
    return lambda ids: theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def marian(transformers: Any, folder: Path) -> Family:
    (folder / "source.spm").write_bytes(unigram())
    (folder / "target.spm").write_bytes(unigram(300))
    vocabulary = marian_vocabulary()
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    special = SpecialIds(**{**marian_special(vocabulary).to_dict(), "suppressed": (vocabulary[">>fra<<"],)})
    ours = PieceTokenizer.marian(unigram(), unigram(300), vocabulary, special)
    return Family(
        ours, lambda text: theirs(text)["input_ids"], text_of(theirs), len(vocabulary) - 2, reserved_ids(special)
    )


def marian_separate(transformers: Any, folder: Path) -> Family:
    (folder / "source.spm").write_bytes(unigram())
    (folder / "target.spm").write_bytes(unigram(300))
    source = numbered(["<pad>", "<unk>", "</s>", *pieces_of(unigram())])
    target = numbered(["</s>", "<unk>", *pieces_of(unigram(300)), "<pad>"])
    (folder / "vocab.json").write_text(json.dumps(source), "utf-8")
    (folder / "target_vocab.json").write_text(json.dumps(target), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": True}), "utf-8")
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    ours = PieceTokenizer.marian(
        unigram(), unigram(300), source, marian_special(target), target_vocabulary=target, vocab_size=len(target) + 3
    )

    # It also drops target ids that mean something in the source.
    unlike = frozenset({*range(3), target["<pad>"]})
    return Family(ours, lambda text: theirs(text)["input_ids"], text_of(theirs), len(target), frozenset({0, 2}), unlike)


def m2m100(transformers: Any, folder: Path) -> Family:
    vocabulary = m2m_vocabulary()
    (folder / "sentencepiece.bpe.model").write_bytes(bpe())
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    theirs = transformers.M2M100Tokenizer.from_pretrained(folder)
    size = len(vocabulary) + 108
    special = fairseq_special(len(vocabulary), size)
    ours = PieceTokenizer.m2m100(bpe(), vocabulary, special, vocab_size=size)
    return Family(
        ours, lambda text: theirs(text)["input_ids"][1:], text_of(theirs), len(vocabulary), reserved_ids(special)
    )


def fairseq(name: str, model: Callable[[], bytes]) -> Callable[[Any, Path], Family]:
    def build(transformers: Any, folder: Path) -> Family:
        (folder / "sentencepiece.bpe.model").write_bytes(model())
        theirs = getattr(transformers, name).from_pretrained(folder)
        pieces, size = len(pieces_of(model())) + 4, len(theirs)
        special = fairseq_special(pieces, size)
        ours = PieceTokenizer.fairseq(model(), special, vocab_size=size)

        def encode(text: str) -> list[int]:
            ids: list[int] = theirs(text)["input_ids"][len(theirs.prefix_tokens) :]
            return ids[: len(ids) + 1 - len(theirs.suffix_tokens)]

        return Family(ours, encode, text_of(theirs), size, reserved_ids(special))

    return build


def t5(transformers: Any, folder: Path) -> Family:
    (folder / "spiece.model").write_bytes(t5_model())
    theirs = transformers.T5Tokenizer.from_pretrained(folder)
    size = len(theirs)
    special = SpecialIds(pad=0, unk=2, start=0, eos=1, suppressed=tuple(range(size - 100, size + 28)))
    ours = PieceTokenizer.t5(t5_model(), special, vocab_size=size + 28)
    return Family(ours, lambda text: theirs(text)["input_ids"], text_of(theirs), size, reserved_ids(special))


FAMILIES: dict[str, Callable[[Any, Path], Family]] = {
    "marian": marian,
    "marian with two vocabularies": marian_separate,
    "m2m100": m2m100,
    "nllb": fairseq("NllbTokenizer", bpe),
    "mbart": fairseq("MBartTokenizer", unigram),
    "mbart50": fairseq("MBart50Tokenizer", unigram),
    "t5": t5,
}
# transformers 5 builds these without SentencePiece and loses all normalisation, or white space at the end.
LOSSY = {"nllb": bpe, "mbart": unigram, "mbart50": unigram}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MarianTokenizer recommends sacremoses and then does not use it
        built = FAMILIES[request.param](transformers, tmp_path_factory.mktemp("tokenizer"))
    if request.param not in LOSSY:
        return built
    normalize = sentencepiece.SentencePieceProcessor(model_proto=LOSSY[request.param]()).normalize
    return dataclasses.replace(built, encode=lambda text: built.encode(normalize(text).replace("\u2581", " ")))


def test_ids_are_those_of_hugging_face(family: Family) -> None:
    """Every text has the ids that its tokenizer gives, with EOS behind them."""
    sources = texts(150)
    ids = [family.ours.encode(text) for text in sources]

    assert ids == [family.encode(text) for text in sources]
    assert len({i for row in ids for i in row}) > 100
    assert sum(family.ours.special.unk in row for row in ids) > 3


def test_texts_are_those_of_hugging_face(family: Family) -> None:
    """Whatever ids a model generates give the text that its tokenizer decodes, whole and streamed."""
    rows = random_ids(family.pieces, 400, {family.ours.special.unk, *family.unlike})
    decoded = [family.ours.decode(ids) for ids in rows]

    assert decoded == [family.decode(ids) for ids in rows]
    assert decoded == ["".join(streamed(family.ours, ids)) for ids in rows]
    assert sum(" " in text for text in decoded) > 100


def test_a_file_keeps_all_of_it(family: Family) -> None:
    """Ids and texts are the same after writing and loading, and the sizes, too."""
    loaded = reloaded(family.ours)
    sources = texts(20)
    rows = random_ids(family.ours.vocab_size, 20, set())

    assert [loaded.encode(t) for t in sources] == [family.ours.encode(t) for t in sources]
    assert [loaded.encode_target(t) for t in sources] == [family.ours.encode_target(t) for t in sources]
    assert [loaded.decode(ids) for ids in rows] == [family.ours.decode(ids) for ids in rows]
    assert (loaded.vocab_size, loaded.source_vocab_size) == (family.ours.vocab_size, family.ours.source_vocab_size)


@pytest.mark.parametrize("text", NAMES)
def test_names_of_special_tokens_are_characters(family: Family, text: str) -> None:
    """No text has the id of a special token, a language or an unused one, but for the EOS at its end."""
    *ids, end = family.ours.encode(text)
    target = family.ours.encode_target(text)[:-1]

    assert ids
    assert end in family.reserved
    assert not family.reserved & set(ids)
    assert all(family.ours.piece_bytes(i) or i == family.ours.special.unk for i in target)


def test_special_tokens_have_no_text(family: Family) -> None:
    """What is no piece is nothing in a text, and is listed for those who choose what may be generated."""
    special = family.ours.special
    marked = {special.pad, special.unk, special.start, special.eos, *special.suppressed}

    assert family.ours.decode(sorted(marked)) == ""
    assert marked <= set(family.ours.textless_ids)
    assert len(family.ours.textless_ids) < family.ours.vocab_size // 2


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_blank_text_is_eos_alone(text: str) -> None:
    """There is nothing to translate."""
    assert PieceTokenizer.m2m100(bpe(), m2m_vocabulary(), fairseq_special(0, 0)).encode(text) == [2]


def test_white_space_at_the_end_is_not_a_piece(tmp_path: Path) -> None:
    """The model file drops it, transformers 5 does not: the first deliberate difference of NLLB."""
    both = FAMILIES["nllb"](pytest.importorskip("transformers"), tmp_path)

    assert both.ours.encode("ten euros ") == both.ours.encode("ten euros")
    assert both.encode("ten euros ") != both.encode("ten euros")


def test_normalisation_is_the_model_file_s(tmp_path: Path) -> None:
    """The model file writes "ﬁ" as "fi"; mBART of transformers 5 does not know it: a deliberate difference."""
    both = FAMILIES["mbart"](pytest.importorskip("transformers"), tmp_path)

    assert both.ours.encode("ﬁve") == both.ours.encode("five") == both.encode("five")
    assert both.ours.special.unk in both.encode("ﬁve")


def test_targets_are_cut_by_the_target_model(tmp_path: Path) -> None:
    """Sources and targets have models of their own."""
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = FAMILIES["marian"](transformers, tmp_path).ours
        theirs = transformers.MarianTokenizer.from_pretrained(tmp_path)
    sources = texts(50)
    ids = [ours.encode_target(text) for text in sources]

    assert ids == [theirs(text_target=text)["input_ids"] for text in sources]
    assert ids != [ours.encode(text) for text in sources]


@pytest.mark.parametrize("options", [{}, {"remove_extra_whitespaces": False}, {"add_dummy_prefix": False}])
@pytest.mark.parametrize("fallback", [False, True])
def test_plain_is_sentence_piece(options: dict[str, bool], fallback: bool) -> None:
    """Ids are the numbers in the file, and texts those of the library's own decoder."""
    size = 600 if fallback else 400
    model = sentence_piece(size, model_type="bpe", byte_fallback=fallback, pad_id=3, **options)
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = PieceTokenizer.plain(model, SpecialIds(pad=3, unk=0, start=1, eos=2))
    first_byte = library.piece_to_id("<0x00>") if fallback else 0
    # Random bytes are broken characters, of which the library makes more replacement characters.
    no_bytes = {0, *(range(first_byte + 128, first_byte + 256) if fallback else ())}
    rows = random_ids(tokenizer.vocab_size, 300, no_bytes) + [library.encode(text) for text in texts(50)]
    rows = [[i for i in row if i] for row in rows]

    assert [tokenizer.encode(text) for text in texts(50)] == [[*library.encode(text), 2] for text in texts(50)]
    assert [tokenizer.decode(ids) for ids in rows] == [library.decode(ids) for ids in rows]
    assert reloaded(tokenizer).decode(rows[1]) == tokenizer.decode(rows[1])


def test_two_plain_models_have_special_ids_of_their_own() -> None:
    """The source's come from its file, the target's from the caller."""
    source = sentence_piece(300, model_type="bpe", pad_id=0, eos_id=3, unk_id=1, bos_id=-1)
    tokenizer = reloaded(PieceTokenizer.plain(source, SpecialIds(pad=1, unk=0, start=1, eos=2), target_model=bpe()))
    library = sentencepiece.SentencePieceProcessor(model_proto=source)

    assert tokenizer.encode("ten euros 😀") == [*library.encode("ten euros 😀"), 3]
    assert tokenizer.encode("ten euros 😀")[-2] == library.unk_id() == 1
    assert tokenizer.decode(tokenizer.encode_target("ten euros")) == "ten euros"
    assert (tokenizer.source_vocab_size, tokenizer.vocab_size) == (library.get_piece_size(), len(pieces_of(bpe())) + 3)


@pytest.mark.parametrize("text", ["a\u2581b", "\u2581\u2581", "\ufdd0 and \u2581"])
def test_the_space_mark_is_a_character(text: str) -> None:
    """With byte fallback it is its bytes; without it is unknown like every character that the model lacks."""
    special = SpecialIds(pad=3, unk=0, start=1, eos=2)
    with_bytes = PieceTokenizer.plain(sentence_piece(600, byte_fallback=True, pad_id=3, model_type="bpe"), special)
    without = PieceTokenizer.plain(sentence_piece(pad_id=3), special)

    assert with_bytes.decode(with_bytes.encode(text)) == text
    assert without.encode(text) == without.encode(text.replace("\u2581", "\ufdd1"))
    assert special.unk in without.encode(text)


def test_a_user_defined_language_token_is_found_in_no_text() -> None:
    """SentencePiece finds such a piece in every text that spells it, unless it is reserved."""
    model = sentence_piece(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols=["<de>", "euro"])
    token = sentencepiece.SentencePieceProcessor(model_proto=model).piece_to_id("<de>")
    free, reserved = (
        PieceTokenizer.t5(model, SpecialIds(pad=0, unk=2, start=0, eos=1, suppressed=ids), vocab_size=500)
        for ids in ((), (token,))
    )

    assert token in free.encode("<de> ten euros")
    assert token not in reserved.encode("<de> ten euros")
    assert reserved.decode(reserved.encode("<de> ten euros")) == "<de> ten euros"
    assert token + 1 in reserved.encode("<de> ten euros")
    assert reserved.encode("ten euros") == free.encode("ten euros")


def test_unknown_characters_that_spell_a_special_token_are_unknown() -> None:
    """SentencePiece returns a run of them as one piece, which must not be looked up among the special tokens."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["10 20 30", "11 12 13"] * 20), model_writer=content, vocab_size=10, minloglevel=2
    )
    model = content.getvalue()
    vocabulary = numbered(["</s>", "<unk>", *pieces_of(model), "ß", "<pad>"])
    tokenizer = PieceTokenizer.marian(model, model, vocabulary, marian_special(vocabulary))

    assert sentencepiece.SentencePieceProcessor(model_proto=model).encode("</s>", out_type=str)[-1] == "</s>"
    assert tokenizer.encode("</s>") == [vocabulary["\u2581"], vocabulary["<unk>"], vocabulary["</s>"]]
    assert tokenizer.encode("ß") == [vocabulary["\u2581"], vocabulary["ß"], vocabulary["</s>"]]
    source = numbered(["<unk>", "</s>", *pieces_of(model), "<pad>", "<s>", ">>fr<<"])
    separate = PieceTokenizer.marian(model, model, source, marian_special(vocabulary), target_vocabulary=vocabulary)
    for name in ("</s>", "<pad>", "<s>", ">>fr<<"):
        assert separate.encode(name) == [source["\u2581"], 0, 1]


def test_the_first_piece_loses_all_its_spaces() -> None:
    """As in the decoder of the library `tokenizers`, also where a piece has several words."""
    decoders = pytest.importorskip("tokenizers.decoders")
    library = decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    names = ["\u2581x\u2581y", "\u2581", "z", "\u2581\u2581"]
    vocabulary = numbered(["<s>", "<pad>", "</s>", "<unk>", *names])
    side = PieceSide(bpe(), 2, 3, len(vocabulary), vocabulary)
    tokenizer = PieceTokenizer(side, fairseq_special(0, 0), joining="metaspace")

    for row in itertools.product(names, repeat=3):
        assert tokenizer.decode([vocabulary[name] for name in row]) == library.decode(list(row))


def test_threads_do_not_disturb_each_other() -> None:
    """Eight at once get what one gets."""
    tokenizer = PieceTokenizer.m2m100(bpe(), m2m_vocabulary(), fairseq_special(0, 0))
    sources = texts(100)
    alone = [tokenizer.encode(text) for text in sources]

    assert in_threads(tokenizer, sources) == [alone] * 8


def test_a_held_back_space_is_not_lost() -> None:
    """White space at the end belongs to a text only if more follows, however many tokens it takes."""
    tokenizer = PieceTokenizer.m2m100(bpe(), m2m_vocabulary(), fairseq_special(0, 0))
    space, letter = m2m_vocabulary()["\u2581"], m2m_vocabulary()["a"]

    assert streamed(tokenizer, [space, letter, space, space, letter, space]) == ["", "a", "", "", "  a", "", ""]


BROKEN = {
    "source.spm": [(b"no model", "source.spm: not a SentencePiece model"), (b"", "it has no pieces")],
    "vocab.json": [
        (b"{", "vocab.json: cannot be read as JSON"),
        (b"[1]", "vocab.json: holds a list"),
        (b'{"a": "b"}', "vocab.json: the id of 'a' is 'b'"),
        (b'{"a": 100000}', "a piece of source.spm has id 100000"),
    ],
}


@pytest.mark.parametrize(("name", "content", "reason"), [(name, *case) for name in BROKEN for case in BROKEN[name]])
def test_a_malformed_file_is_named(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    """The message says which file of which folder, and what is wrong with it."""
    tokenizer = PieceTokenizer.m2m100(bpe(), m2m_vocabulary(), fairseq_special(0, 0))
    for file, good in tokenizer.files().items():
        (tmp_path / file).write_bytes(content if file == name else good)

    with pytest.raises(ValueError, match=reason) as caught:
        load_tokenizer(tmp_path, describe_tokenizer(tokenizer), tokenizer.special)
    assert str(tmp_path) in str(caught.value)


def test_wrong_settings_are_refused() -> None:
    """A joining that is not known, a file that is not there, an id outside the vocabulary."""
    tokenizer = PieceTokenizer.m2m100(bpe(), m2m_vocabulary(), fairseq_special(0, 0))
    files, settings = tokenizer.files(), tokenizer.settings()

    with pytest.raises(ValueError, match="joining is 'glue'; allowed are strip, metaspace"):
        PieceTokenizer.load(files, {**settings, "joining": "glue"}, tokenizer.special)
    with pytest.raises(ValueError, match=r"vocab.json is missing; there are source.spm"):
        PieceTokenizer.load({"source.spm": files["source.spm"]}, settings, tokenizer.special)
    with pytest.raises(ValueError, match="a special token of the target has id 99999"):
        PieceTokenizer.load(files, settings, SpecialIds(suppressed=(99999,)))
    with pytest.raises(ValueError, match="the source vocabulary lacks </s> and <unk>"):
        PieceTokenizer.marian(bpe(), bpe(), {"a": 0}, SpecialIds(), target_vocabulary=m2m_vocabulary())
