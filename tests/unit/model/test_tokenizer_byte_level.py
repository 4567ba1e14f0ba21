"""Byte-level BPE: the ids and texts of BART's tokenizer, whatever the text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.model.tokenizers import ByteLevelTokenizer, describe_tokenizer, load_tokenizer
from dragoman.model.vocab import SpecialIds
from tests.fakes.tokenizer_texts import NAMES, in_threads, random_ids, reloaded, sentences, streamed, texts

tokenizers = pytest.importorskip("tokenizers")

NAMES_IN_FRONT = ["<s>", "<pad>", "</s>", "<unk>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a BART checkpoint."""
    path = tmp_path_factory.mktemp("bart")
    learner = tokenizers.ByteLevelBPETokenizer()
    learner.train_from_iterator(sentences(), vocab_size=500, special_tokens=NAMES_IN_FRONT, show_progress=False)
    learner.save_model(str(path))
    vocabulary = json.loads((path / "vocab.json").read_text("utf-8"))
    vocabulary["<mask>"] = len(vocabulary)
    (path / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    return path


def special(folder: Path) -> SpecialIds:
    mask = json.loads((folder / "vocab.json").read_text("utf-8"))["<mask>"]
    return SpecialIds(pad=1, unk=3, start=2, eos=2, suppressed=(0, mask))


@pytest.fixture(scope="module")
def ours(folder: Path) -> ByteLevelTokenizer:
    vocabulary, merges = ((folder / name).read_bytes() for name in ("vocab.json", "merges.txt"))
    return ByteLevelTokenizer.from_files(vocabulary, merges, special(folder), before=(0,))


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return pytest.importorskip("transformers").BartTokenizer.from_pretrained(folder)


def test_ids_are_those_of_bart(ours: ByteLevelTokenizer, theirs: Any) -> None:
    """<s>, the text with all its white space, </s>."""
    sources = [text for text in texts(200) if text]
    ids = [ours.encode(text) for text in sources]

    assert ids == [theirs(text)["input_ids"] for text in sources]
    assert ids[0][0] == 0
    assert len({i for row in ids for i in row}) > 200


def test_texts_are_those_of_bart(ours: ByteLevelTokenizer, theirs: Any) -> None:
    """Whatever ids a model generates give the text that BART's tokenizer decodes, broken characters included."""
    rows = random_ids(ours.vocab_size, 500, set())
    decoded = [ours.decode(ids) for ids in rows]

    assert decoded == [theirs.decode(i, skip_special_tokens=True, clean_up_tokenization_spaces=False) for i in rows]
    assert decoded == ["".join(streamed(ours, ids)) for ids in rows]
    assert any("\ufffd" in text for text in decoded)


@pytest.mark.parametrize("text", [*NAMES, "naïve 😀 日本語", " in front", "behind \n"])
def test_text_survives(ours: ByteLevelTokenizer, text: str) -> None:
    """Decoding gives the text back, and no character of it has become a special token."""
    *ids, end = ours.encode_target(text)

    assert ours.decode(ids) == text
    assert end == 2
    assert all(ours.piece_bytes(i) for i in ids)
    assert not any("\ufffd" in piece for piece in streamed(ours, ids))


def test_the_space_in_front_is_a_setting(folder: Path) -> None:
    """As for models that read the first word like all others."""
    vocabulary, merges = ((folder / name).read_bytes() for name in ("vocab.json", "merges.txt"))
    plain, spaced = (
        ByteLevelTokenizer.from_files(vocabulary, merges, special(folder), prefix_space=space)
        for space in (False, True)
    )

    assert spaced.encode("ten euros") == plain.encode(" ten euros") != plain.encode("ten euros")
    assert reloaded(spaced).encode("ten euros") == spaced.encode("ten euros")


def test_tokenizer_json_is_the_same(folder: Path, ours: ByteLevelTokenizer, theirs: Any, tmp_path: Path) -> None:
    """New checkpoints have one file instead of two."""
    theirs.save_pretrained(tmp_path)
    content = (tmp_path / "tokenizer.json").read_bytes()
    tokenizer = ByteLevelTokenizer.from_tokenizer_json(content, special(folder), before=(0,))

    assert tokenizer.vocab_size == ours.vocab_size
    assert tokenizer.settings() == ours.settings()
    assert [tokenizer.encode(text) for text in texts(50)] == [ours.encode(text) for text in texts(50)]


def test_another_tokenizer_json_is_refused(ours: ByteLevelTokenizer) -> None:
    """Everything that is not of this kind is named."""
    described = {
        "model": {"type": "Unigram", "vocab": {"a": 0}, "merges": [], "byte_fallback": True},
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Metaspace"},
    }

    with pytest.raises(ValueError, match=r"model is 'Unigram'.*normalizer, 'NFC'.*'Metaspace'.*byte_fallback is True"):
        ByteLevelTokenizer.from_tokenizer_json(json.dumps(described).encode(), ours.special)
    for broken in (b"{}", b"[]", b"x", b'{"model": 1, "pre_tokenizer": null}'):
        with pytest.raises(ValueError, match=r"tokenizer\.json: not a byte-level BPE tokenizer"):
            ByteLevelTokenizer.from_tokenizer_json(broken, ours.special)


def test_files_keep_all_of_it(ours: ByteLevelTokenizer) -> None:
    """Ids and texts are the same after writing and loading."""
    loaded = reloaded(ours)
    rows = random_ids(ours.vocab_size, 50, set())

    assert [loaded.encode(text) for text in texts(50)] == [ours.encode(text) for text in texts(50)]
    assert [loaded.decode(ids) for ids in rows] == [ours.decode(ids) for ids in rows]
    assert loaded.vocab_size == ours.vocab_size
    assert loaded.added_ids == 2


def test_unused_ids_have_no_text(folder: Path) -> None:
    """A model may have more rows than its tokenizer has tokens."""
    vocabulary, merges = ((folder / name).read_bytes() for name in ("vocab.json", "merges.txt"))
    tokenizer = ByteLevelTokenizer.from_files(vocabulary, merges, special(folder), vocab_size=510)

    assert tokenizer.decode(range(505, 510)) == ""
    assert tokenizer.textless_ids == (0, 1, 2, 3, special(folder).suppressed[1], *range(501, 510))


def test_threads_do_not_disturb_each_other(ours: ByteLevelTokenizer) -> None:
    """Eight at once get what one gets."""
    sources = texts(100)

    assert in_threads(ours, sources) == [[ours.encode(text) for text in sources]] * 8


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("vocab.json", b"nothing", r"vocab\.json: cannot be read as JSON"),
        ("vocab.json", b'{"a": 0}', r"merges\.txt does not fit vocab\.json"),
        ("vocab.json", b'{"a": 1000}', r"a token of vocab\.json has id 1000"),
        ("merges.txt", b"#version: 0.2\na b c\n", r"merges\.txt, line 2: 'a b c' is not a pair"),
        ("merges.txt", b"\xff\xfe", r"merges\.txt: not UTF-8"),
    ],
)
def test_a_malformed_file_is_named(
    ours: ByteLevelTokenizer, tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    """The message says which file of which folder, and what is wrong with it."""
    for file, good in ours.files().items():
        (tmp_path / file).write_bytes(content if file == name else good)

    with pytest.raises(ValueError, match=reason) as caught:
        load_tokenizer(tmp_path, describe_tokenizer(ours), ours.special)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_library_is_named(ours: ByteLevelTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this kind needs it, so it may well not be there."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)

    with pytest.raises(ValueError, match="pip install tokenizers"):
        reloaded(ours)
