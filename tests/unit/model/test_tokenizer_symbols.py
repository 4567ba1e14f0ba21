"""Lists of symbols: characters, words, parts of words and pieces, each side in its own way."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import sentencepiece

from dragoman.model.tokenizers import SymbolSide, SymbolTokenizer, describe_tokenizer, load_tokenizer
from dragoman.model.tokenizers.subwords import Subwords
from dragoman.model.vocab import SpecialIds
from tests.fakes.tokenizer_texts import in_threads, random_ids, reloaded, sentence_piece, sentences, streamed, texts

SPECIAL = SpecialIds(pad=1, unk=3, start=0, eos=2)
FRONT = ("<s>", "<pad>", "</s>", "<unk>")
VERSION = b"#version: 0.2\n"


def characters() -> SymbolSide:
    return SymbolSide((*FRONT, *" abcdefghijklmnopqrstuvwxyz"), "characters", unk=3, after=(2,))


def words(*more: str, joiner: str | None = None, codes: bytes | None = None) -> SymbolSide:
    return SymbolSide((*FRONT, *more), "words", unk=3, after=(2,), joiner=joiner, codes=codes)


def pieces() -> SymbolSide:
    model = sentence_piece(model_type="bpe")
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    numbers = range(3, library.get_piece_size())
    return SymbolSide((*FRONT, *map(library.id_to_piece, numbers)), "pieces", unk=3, after=(2,), model=model)


@functools.cache
def learned_codes(merges: int = 150) -> tuple[tuple[str, str], ...]:
    """Return the most frequent pairs, as subword-nmt learns them."""
    counts = Counter(word for text in sentences() for word in text.split())
    rows = {word: [*word[:-1], word[-1] + "</w>"] for word in counts}
    codes = []
    for _ in range(merges):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, row in rows.items():
            for pair in itertools.pairwise(row):
                pairs[pair] += counts[word]
        codes.append(max(pairs, key=lambda pair: (pairs[pair], pair)))
        rows = {word: merge(row, codes[-1]) for word, row in rows.items()}
    return tuple(codes)


def merge(row: list[str], pair: tuple[str, str]) -> list[str]:
    if pair not in itertools.pairwise(row):
        return row
    joined, old = "\0".join(["", *row, ""]), "\0" + "\0".join(pair) + "\0"
    while old in joined:
        joined = joined.replace(old, "\0" + "".join(pair) + "\0", 1)
    return joined.strip("\0").split("\0")


def file_of(codes: Sequence[tuple[str, str]], version: bytes = VERSION) -> bytes:
    return version + "".join(f"{left} {right}\n" for left, right in codes).encode()


def test_characters_are_looked_up_one_by_one() -> None:
    """White space stays as it is, an unknown character is one unknown symbol."""
    tokenizer = SymbolTokenizer(characters(), SPECIAL)

    assert tokenizer.encode("ab  z!\n") == [5, 6, 4, 4, 30, 3, 3, 2]
    assert tokenizer.decode([0, 5, 6, 4, 4, 30, 2]) == "ab  z"
    assert tokenizer.decode(tokenizer.encode(" in front")) == " in front"


def test_upper_case_is_a_setting_of_a_side() -> None:
    """A model trained on lower-case sources may write upper-case targets."""
    lower, target = dataclasses.replace(characters(), lowercase=True), characters()
    tokenizer = SymbolTokenizer(lower, SPECIAL, target=target)

    assert tokenizer.encode("AbC") == [5, 6, 7, 2]
    assert tokenizer.encode_target("AbC") == [3, 6, 3, 2]


def test_a_symbol_may_stand_for_the_space() -> None:
    """JoeyNMT writes characters so; the symbol itself in a text is not a space."""
    side = SymbolSide((*FRONT, "\u2581", "a", "b"), "characters", unk=3, after=(2,), space="\u2581")
    tokenizer = SymbolTokenizer(side, SPECIAL)

    assert tokenizer.encode("a b") == [5, 4, 6, 2]
    assert tokenizer.encode("a\u2581b") == [5, 3, 6, 2]
    assert tokenizer.decode([5, 4, 6]) == "a b"


def test_words_stand_between_white_space() -> None:
    """Any run of it separates them, and one space joins them."""
    tokenizer = SymbolTokenizer(words("ten", "euros", "Ten"), SPECIAL)

    assert tokenizer.encode(" ten\t\u3000euros\nTen five ") == [4, 5, 6, 3, 2]
    assert tokenizer.decode([0, 4, 3, 5, 2]) == "ten euros"
    assert streamed(tokenizer, [4, 5, 2]) == ["ten", " euros", "", ""]


@pytest.mark.parametrize("text", ["</s>", "<pad> ten", "ten <unk> <s>"])
@pytest.mark.parametrize("two_sides", [False, True])
def test_names_of_special_symbols_are_unknown_words(text: str, two_sides: bool) -> None:
    """User text is data, also on a side whose special ids are not the target's."""
    source = SymbolSide(("<unk>", "<s>", "</s>", "<pad>", "ten"), "words", unk=0, after=(2,), reserved=(1, 3))
    tokenizer = (
        SymbolTokenizer(source, SPECIAL, target=words("ten"))
        if two_sides
        else SymbolTokenizer(dataclasses.replace(source, reserved=()), SpecialIds(pad=3, unk=0, start=1, eos=2))
    )
    ids = tokenizer.encode(text)

    assert ids == [*(4 if word == "ten" else 0 for word in text.split()), 2]


def test_sides_have_lists_and_special_ids_of_their_own() -> None:
    """A source with BOS and other numbers, and a target in characters."""
    source = SymbolSide(("<bos>", "<eos>", "ten", None, "?"), "words", unk=4, before=(0,), after=(1,))
    tokenizer = SymbolTokenizer(source, SPECIAL, target=characters())

    assert tokenizer.encode("ten five") == [0, 2, 4, 1]
    assert tokenizer.encode_target("ten") == [24, 9, 18, 2]
    assert tokenizer.decode([24, 9, 18, 1]) == "ten"
    assert (tokenizer.source_vocab_size, tokenizer.vocab_size, tokenizer.added_ids) == (5, 31, 2)
    assert tokenizer.textless_ids == (0, 1, 2, 3)


@pytest.mark.parametrize("text", ["", " \n"])
def test_blank_text_is_what_stands_behind_a_text(text: str) -> None:
    """EOS alone, or nothing for a model without."""
    source = dataclasses.replace(words("ten"), before=(0,))

    assert SymbolTokenizer(source, SPECIAL).encode(text) == [2]
    assert SymbolTokenizer(dataclasses.replace(source, after=()), SPECIAL).encode(text) == []


def test_a_source_may_end_without_eos() -> None:
    """Some models never saw one."""
    tokenizer = SymbolTokenizer(dataclasses.replace(words("ten"), after=()), SPECIAL)

    assert tokenizer.encode("ten ten") == [4, 4]
    assert tokenizer.added_ids == 0


def test_joined_parts_are_one_word() -> None:
    """A joiner swallows the space behind it, and at the end of a text it disappears."""
    tokenizer = SymbolTokenizer(words("ten@@", "fold", "euros", joiner="@@"), SPECIAL)

    assert tokenizer.decode([4, 5, 6, 4]) == "tenfold euros ten"
    assert streamed(tokenizer, [4, 5, 6, 2, 4]) == ["ten", "fold", " euros", "", " ten", ""]
    assert SymbolTokenizer(words("ten@@", "fold"), SPECIAL).decode([4, 5]) == "ten@@ fold"


def test_codes_cut_words_as_merging_one_by_one_does() -> None:
    """The heap gives what the definition gives: again and again the earliest merge, everywhere in the word."""
    codes = learned_codes()
    chance = random.Random(4)
    shuffled = chance.sample(codes, len(codes))  # merges whose parts are made later, as in no learned file
    some = {word for text in texts(200) for word in text.split()} | {"a" * 50, "ababab" * 9, "n" * 7}

    for order in (codes, shuffled):
        cut = Subwords(file_of(order), "codes").cut
        parts = {word: cut(word) for word in some}
        assert parts == {word: slowly(word, order) for word in some}
        assert {len(row) for row in parts.values()} >= {1, 2, 3}


def slowly(word: str, codes: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    row = [*word[:-1], word[-1] + "</w>"]
    while found := [codes.index(pair) for pair in set(itertools.pairwise(row)) if pair in codes]:
        row = merge(row, codes[min(found)])
    row[-1] = row[-1].removesuffix("</w>")
    return (*(part + "@@" for part in row[:-1]), row[-1])


@pytest.mark.parametrize("version", [b"", VERSION])
def test_codes_cut_words_as_subword_nmt_does(version: bytes) -> None:
    """Files of both versions give the same parts as the package."""
    package = pytest.importorskip("subword_nmt.apply_bpe")
    codes: Sequence[tuple[str, str]] = learned_codes()
    if not version:
        codes = [pair for code in codes for pair in old_style(code)]
    theirs = package.BPE(io.StringIO(file_of(codes, version).decode()))
    ours = Subwords(file_of(codes, version), "codes")

    some = {word for text in texts(300) for word in text.split()}
    assert [list(ours.cut(word)) for word in some] == [theirs.segment_tokens([word]) for word in some]


def old_style(code: tuple[str, str]) -> list[tuple[str, str]]:
    left, right = code
    if not right.endswith("</w>"):
        return [code]
    right = right.removesuffix("</w>")
    return [(right, "</w>"), (left, right + "</w>"), (left, right)]


def test_codes_of_all_formats_are_read() -> None:
    """Counts (of fastBPE) may stand in for the version; without both, the end of a word is a part of its own."""
    assert Subwords(b"l o 5\nlo w</w> 3\n", "codes").cut("low") == ("low",)
    assert Subwords(VERSION + b"l o\nlo w</w>\n", "codes").cut("low") == ("low",)
    assert Subwords(b"l o\nw </w>\n", "codes").cut("low") == ("lo@@", "w")
    assert Subwords(b"l o\nlo w</w>\n", "codes").cut("low") == ("lo@@", "w")
    assert Subwords(VERSION + b"l o\r\n", "codes", joiner="_").cut("lol") == ("lo_", "l")


def test_a_long_word_takes_no_longer_than_its_length() -> None:
    """Ten times the length is not a hundred times the merges; here it would be minutes."""
    word = "fünfhunderteinundzwanzigtausend" * 1000

    assert "".join(Subwords(file_of(learned_codes()), "codes").cut(word)).replace("@@", "") == word


def test_codes_and_list_work_together() -> None:
    """Words are cut, parts looked up, and what is decoded is the text."""
    codes = learned_codes()
    cut = Subwords(file_of(codes), "codes").cut
    known = dict.fromkeys(part for text in sentences() for word in text.split() for part in cut(word))
    tokenizer = SymbolTokenizer(words(*known, joiner="@@", codes=file_of(codes)), SPECIAL)
    text = sentences()[0]

    assert tokenizer.encode(text) == [*(4 + list(known).index(p) for w in text.split() for p in cut(w)), 2]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) > len(text.split()) + 1
    assert 3 in tokenizer.encode("日")[:-1] or "日" in known


def test_pieces_are_looked_up_in_the_list() -> None:
    """As fairseq's dictionary beside a SentencePiece model; the name of a special symbol stays characters."""
    side = pieces()
    tokenizer = SymbolTokenizer(side, SPECIAL)
    library = sentencepiece.SentencePieceProcessor(model_proto=side.model)

    for text in texts(50):
        expected = [side.symbols.index(p) if p in side.symbols else 3 for p in library.encode(text, out_type=str)]
        assert tokenizer.encode(text) == [*expected, 2]
        assert 3 in expected or tokenizer.decode(expected) == library.decode(library.encode(text)).strip()
    assert not {0, 1, 2} & set(tokenizer.encode("<s> </s> <pad>")[:-1])
    assert tokenizer.decode([0, side.symbols.index("\u2581"), *tokenizer.encode("ten euros")]) == "ten euros"


def every_kind() -> dict[str, SymbolTokenizer]:
    codes = learned_codes()
    return {
        "characters": SymbolTokenizer(characters(), SPECIAL),
        "words": SymbolTokenizer(dataclasses.replace(words("ten", "euros"), lowercase=True, before=(0,)), SPECIAL),
        "codes": SymbolTokenizer(
            words(*dict.fromkeys("@@".join(codes[i]) for i in range(9)), joiner="@@", codes=file_of(codes)), SPECIAL
        ),
        "pieces": SymbolTokenizer(characters(), SPECIAL, target=pieces()),
        "space": SymbolTokenizer(
            SymbolSide((*FRONT, "_", "a", None), "characters", unk=3, space="_", reserved=(5,)), SPECIAL
        ),
    }


@pytest.mark.parametrize("kind", every_kind())
def test_files_keep_all_of_it(kind: str) -> None:
    """Ids and texts are the same after writing and loading, streamed and whole."""
    tokenizer = every_kind()[kind]
    loaded = reloaded(tokenizer)
    rows = random_ids(tokenizer.vocab_size, 50, set())

    assert isinstance(loaded, SymbolTokenizer)
    assert [loaded.encode(text) for text in texts(30)] == [tokenizer.encode(text) for text in texts(30)]
    assert [loaded.encode_target(text) for text in texts(30)] == [tokenizer.encode_target(text) for text in texts(30)]
    assert [loaded.decode(ids) for ids in rows] == ["".join(streamed(tokenizer, ids)) for ids in rows]
    assert loaded.settings() == tokenizer.settings()
    assert loaded.files() == tokenizer.files()


def test_threads_do_not_disturb_each_other() -> None:
    """Eight at once get what one gets, through the cache of cut words, too."""
    codes = learned_codes()
    tokenizer = SymbolTokenizer(words("a@@", "b", joiner="@@", codes=file_of(codes)), SPECIAL)
    sources = texts(100)
    alone = reloaded(tokenizer)

    assert in_threads(tokenizer, sources) == [[alone.encode(text) for text in sources]] * 8


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("source.symbols.json", b"{}", r"source\.symbols\.json: holds an object, symbols are a list"),
        ("source.symbols.json", b'["a", 3]', r"source\.symbols\.json: entry 1 is 3"),
        ("source.symbols.json", b'["a"]', "a special symbol of the source has id 2, 3, there are 1"),
        ("source.symbols.json", b"a\n", r"source\.symbols\.json: cannot be read as JSON"),
        ("source.codes", b"", r"source\.codes: no merges"),
        ("source.codes", VERSION + b"a b\na\n", r"source\.codes, line 3: 'a' is not a pair"),
        ("source.codes", b"#version: 9\na b\n", r"source\.codes: codes of version '9'; 0\.1 and 0\.2 are known"),
        ("source.codes", b"\xff", r"source\.codes: not UTF-8"),
        ("target.spm", b"no", r"target\.spm: not a SentencePiece model"),
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    """The message says which file of which folder, and what is wrong with it."""
    source = words("a@@", "b", joiner="@@", codes=b"a b 3\n")
    tokenizer = SymbolTokenizer(source, SPECIAL, target=pieces())
    for file, good in tokenizer.files().items():
        (tmp_path / file).write_bytes(content if file == name else good)

    with pytest.raises(ValueError, match=reason) as caught:
        load_tokenizer(tmp_path, describe_tokenizer(tokenizer), SPECIAL)
    assert str(tmp_path) in str(caught.value)


def test_a_side_that_contradicts_itself_is_refused() -> None:
    """Everything is said at once."""
    wrong = dataclasses.replace(characters(), codes=b"a b\n", joiner="@@", model=b"x")

    with pytest.raises(ValueError, match=r"file of codes is for 'words'.*joiner is for.*model is for 'pieces'"):
        SymbolTokenizer(wrong, SPECIAL)
    with pytest.raises(ValueError, match="there is no SentencePiece model"):
        SymbolTokenizer(SymbolSide(FRONT, "pieces", unk=3), SPECIAL)
    with pytest.raises(ValueError, match="the source side is split into 'lines'; allowed are characters, words"):
        SymbolTokenizer.load({}, {"source": {"split": "lines"}}, SPECIAL)
