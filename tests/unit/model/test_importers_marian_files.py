"""The files of a Marian model: vocabularies that keep their ids, and what cannot be read."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import sentencepiece

from dragoman.model.errors import ImportFailed
from dragoman.model.search import greedy
from tests.fakes.marian_folders import read, write_vocabulary
from tests.fakes.marian_models import EOS, UNTIED, VOCABULARY, binary, random_model


def test_symbols_stay_what_they_are_spelt(tmp_path: Path) -> None:
    """A word that YAML would take for a truth value or a number is a word."""
    words = {2: "no", 3: "null", 4: "1.0", 5: "12:30:00", 6: "on", 7: '"#"', 8: '"\\u00fc@@"'}
    write_vocabulary(tmp_path / "vocab.yml", VOCABULARY, lambda i: words.get(i, f"w{i}"))
    tokenizer = read(random_model(1).write_npz(tmp_path / "model.npz")).tokenizer

    assert tokenizer.encode("no null 1.0 12:30:00 on # ü@@ w9 nothing </s>") == [2, 3, 4, 5, 6, 7, 8, 9, 1, 1, EOS]
    assert tokenizer.decode([2, 3, 4, 9, EOS]) == "no null 1.0 w9"


def test_codes_cut_words_into_symbols(tmp_path: Path) -> None:
    """With the codes of subword-nmt, texts go in and come out as users write them."""
    parts = {2: "lo@@", 3: "w", 4: "l", 5: "o@@", 6: "ow"}
    write_vocabulary(tmp_path / "vocab.yml", VOCABULARY, lambda i: parts.get(i, f"w{i}"))
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\nl o\no w</w>\n", "utf-8")
    path = random_model(1).write_npz(tmp_path / "model.npz")

    tokenizer = read(path, f"--codes={codes}").tokenizer

    assert tokenizer.encode("low ow") == [2, 3, 6, EOS]
    assert tokenizer.decode([2, 3, 6, EOS]) == "low ow"


@pytest.mark.parametrize("names", [("vocab.spm",), ("srcvocab.enpt.spm", "trgvocab.enpt.spm")])
def test_sentencepiece_vocabularies_keep_their_ids(names: tuple[str, ...], tmp_path: Path) -> None:
    """Text becomes the ids of SentencePiece, of one model or of two; the start token has none of them and no text."""
    processors = [train_pieces(tmp_path / name, VOCABULARY - 10 * i) for i, name in enumerate(names)]
    sizes = [processors[0].get_piece_size(), processors[-1].get_piece_size()]
    options = {"dim-vocabs": sizes, **(UNTIED if len(names) == 2 else {})}
    checkpoint = read(random_model(1, **options).write_bin(tmp_path / "model.enpt.intgemm8.bin"), form="bergamot")
    tokenizer, special = checkpoint.tokenizer, checkpoint.tokenizer.special

    for text in ("the cat sat", "a  mat , </s> where?", "日本"):
        assert tokenizer.encode(text) == [*processors[0].encode(text), EOS]
        assert tokenizer.encode_target(text) == [*processors[-1].encode(text), EOS]
    assert tokenizer.decode(processors[-1].encode("the cat sat")) == "the cat sat"
    assert (special.eos, special.unk, special.start, special.pad) == (EOS, 1, sizes[1], sizes[1])
    assert tokenizer.vocab_size == checkpoint.model.config.vocab_size == sizes[1] + 1
    assert (checkpoint.source_language, checkpoint.target_language) == ("en", "pt")
    found = greedy(checkpoint.model, [tokenizer.encode("the cat"), tokenizer.encode("a mat sat")], [9, 9], special)
    assert special.start not in found[0] + found[1]


def train_pieces(path: Path, size: int) -> sentencepiece.SentencePieceProcessor:
    text = ["the cat sat on the mat , where the rat ran", "a hat for a bat", "there are no cats in the attic ?"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_prefix=str(path.with_suffix("")), vocab_size=size - 10,
        eos_id=0, unk_id=1, bos_id=-1, pad_id=-1, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    path.with_suffix(".model").rename(path)
    path.with_suffix(".vocab").unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def test_a_vocabulary_of_another_model_is_refused(tmp_path: Path) -> None:
    """More pieces than embeddings cannot be right."""
    train_pieces(tmp_path / "vocab.spm", VOCABULARY)
    model = random_model(1, **{"dim-vocabs": [12, 12]})

    with pytest.raises(ImportFailed, match=r"pieces, the model has embeddings for 12; it is the vocabulary of another"):
        read(model.write_npz(tmp_path / "model.npz"))


def test_the_configuration_beside_a_model_names_its_vocabularies(tmp_path: Path) -> None:
    """Vocabularies come from --vocab, else from the YAML beside the model, else by name; a choice is not made."""
    model = random_model(1)
    path = model.write_npz(tmp_path / "model.npz")
    with pytest.raises(ImportFailed, match="no vocabularies found; give --vocab"):
        read(path)
    for name in ("vocab.en.yml", "vocab.de.yml"):
        write_vocabulary(tmp_path / name, VOCABULARY, lambda i, name=name: f"{name[6]}{i}")  # type: ignore[misc]
    with pytest.raises(ImportFailed, match=r"vocab.de.yml, vocab.en.yml; name them with --vocab"):
        read(path)
    (tmp_path / "decoder.yml").write_text("vocabs: [/of/another/machine/vocab.en.yml, vocab.de.yml]\nbeam-size: 6\n")

    tokenizer = read(path).tokenizer

    assert tokenizer.encode("e5 d5") == [5, 1, EOS]
    assert tokenizer.encode_target("e5 d5") == [1, 5, EOS]
    assert read(path, f"--vocab={tmp_path / 'vocab.de.yml'}").tokenizer.encode("e5 d5") == [1, 5, EOS]


def damaged_files() -> dict[str, tuple[bytes, str]]:
    text = b"type: transformer\0"
    options = ("special:model.yml", 0x101, (len(text),), text)
    whole = binary([options, ("Wemb", 0x404, (2, 2), bytes(16))])
    return {
        "cut off": (whole[:-5], "is cut off: Wemb ends at byte"),
        "cut off early": (whole[:40], "is no binary file of Marian's, or is cut off"),
        "no such file": (b"hello", "is no binary file of Marian's"),
        "version": (b"\x02" + whole[1:], "has version 2; supported is 1"),
        "compressed": (gzip.compress(whole), "compressed with gzip"),
        "packed": (binary([options, ("Wemb", 0x1801, (2, 2), bytes(16))]), "Wemb is of type 0x1801"),
        "too short": (
            binary([options, ("Wemb", 0x404, (2, 3), bytes(16))]),
            r"Wemb has 16 bytes, too few for \[2, 3\]",
        ),
        "no options": (binary([("Wemb", 0x404, (2, 2), bytes(16))]), "has no special:model.yml inside"),
    }


@pytest.mark.parametrize("case", damaged_files())
def test_damaged_binary_files_are_refused(case: str, tmp_path: Path) -> None:
    """What cannot be read is refused with the reason."""
    content, reason = damaged_files()[case]
    (tmp_path / "model.bin").write_bytes(content)

    with pytest.raises(ImportFailed, match=reason):
        read(tmp_path, form="bergamot")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04nonsense", b"\x93NUMPY", b"\x80\x04N."])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    """Neither garbage nor a pickle is read as .npz."""
    (tmp_path / "model.npz").write_bytes(content)

    with pytest.raises(ImportFailed, match=r"cannot be read as a .npz file"):
        read(tmp_path)
