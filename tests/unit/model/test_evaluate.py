"""Evaluation: scores of parts, faults of hand-made outputs, and the cached search against the reference."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Literal

import pytest
import torch

from dragoman.model.cached_search import greedy_cached
from dragoman.model.config import ModelConfig
from dragoman.model.evaluate import NO_ORIGIN, evaluate
from dragoman.model.generated import examples
from dragoman.model.quality import find_faults, is_looping, is_untranslated, loops
from dragoman.model.samples import Ending, Output, Sample
from dragoman.model.scores import corpus_scores
from dragoman.model.search import greedy
from dragoman.model.tokenizers import Tokenizer, train_tokenizer
from dragoman.model.transformer import Transformer
from dragoman.model.translate import translate_all

COPY = "Open the file"


def sample(
    source: str, reference: str, text: str, *, ending: Ending = Ending.EOS, origin: str = "", number: int = 1
) -> Sample:
    return Sample(number, source, reference, origin, Output(text, ending))


def words(count: int) -> str:
    return " ".join(f"word{i}" for i in range(count))


# Scores


def test_right_translations_score_100() -> None:
    """Both metrics at their top, all characters there."""
    texts = ["Öffnen Sie die Datei im Editor.", "Das Fenster schließt sich wieder."]
    scores = corpus_scores(texts, texts)

    assert (scores.bleu, scores.chrf, scores.length_ratio, scores.sentences) == (100.0, 100.0, 1.0, 2)
    assert "tok:13a" in scores.bleu_signature


def test_bleu_of_short_phrases_is_undefined_and_not_zero() -> None:
    """BLEU counts four tokens in a row; where no reference has them, 0 would blame a right translation."""
    assert corpus_scores(["Neue Datei"], ["Neue Datei"]).bleu is None
    assert corpus_scores(["Neue Datei"], ["Neue Datei"]).chrf == 100.0
    assert corpus_scores(["", "Nein"], ["Das Fenster schließt sich wieder.", "Nein"]).bleu == 0.0


def test_chinese_needs_its_tokenizer() -> None:
    """Without spaces a sentence would be one token."""
    translation, reference = ["打开文件夹并保存新文件"], ["打开文件夹并保存文件"]

    assert corpus_scores(translation, reference).bleu is None
    assert (corpus_scores(translation, reference, tokenizer="zh").bleu or 0) > 50


def test_length_ratio_counts_characters() -> None:
    """Of all texts together, not averaged over sentences."""
    assert corpus_scores(["aaaa", ""], ["aa", "aaaaaa"]).length_ratio == 0.5


# Groups


@pytest.mark.parametrize(
    ("count", "name"),
    [
        (0, "1-2"), (1, "1-2"), (2, "1-2"), (3, "3-4"), (4, "3-4"), (5, "5-9"), (9, "5-9"),
        (10, "10-19"), (19, "10-19"), (20, "20-39"), (39, "20-39"), (40, "40+"), (400, "40+"),
    ],
)  # fmt: skip
def test_source_words_decide_the_group(count: int, name: str) -> None:
    """Both ends of each group."""
    (group,) = evaluate([sample(words(count), "a b c d", "a b c d")]).by_source_words

    assert group.name == name


def test_groups_part_the_samples() -> None:
    """Each sample is in one group of each table, and a group's scores are those of its samples alone."""
    samples = [
        sample(
            words(1 + i % 45), f"Satz Nummer {i} hat Wörter", f"Satz Nummer {i % 7} hat", origin="abc"[i % 3 : i % 5]
        )
        for i in range(100)
    ]
    found = evaluate(samples)

    for groups in (found.by_source_words, found.by_origin):
        assert sum(group.scores.sentences for group in groups) == found.scores.sentences == 100
    assert [group.name for group in found.by_source_words] == ["1-2", "3-4", "5-9", "10-19", "20-39", "40+"]
    sizes = [group.scores.sentences for group in found.by_origin]
    assert sizes == sorted(sizes, reverse=True)
    for group in found.by_origin:
        members = [s for s in samples if (s.origin or NO_ORIGIN) == group.name]
        assert group.scores == corpus_scores([s.output.text for s in members], [s.reference for s in members])


def test_groups_without_samples_are_left_out() -> None:
    """A row of nothing would only take space."""
    found = evaluate([sample("one", "eins", "eins", origin="x"), sample(words(50), "viel", "viel", origin="x")])

    assert [group.name for group in found.by_source_words] == ["1-2", "40+"]
    assert [group.name for group in found.by_origin] == ["x"]


# Faults


@pytest.mark.parametrize(
    ("source", "reference", "text", "expected"),
    [
        (COPY, "Öffnen Sie die Datei", COPY, True),
        (COPY, "Öffnen Sie die Datei", " open  THE file\n", True),
        ("Press Ctrl\u00a0+ \ufb01le", "Drücken Sie", "press ctrl + file", True),  # as the tokenizer normalises
        (COPY, "Öffnen Sie die Datei", "Open the Datei", False),
        (COPY, "Öffnen Sie die Datei", "", False),
        ("GNU General Public License", "GNU General Public License", "GNU General Public License", False),
        ("GNU GENERAL PUBLIC LICENSE", "gnu general public license", "GNU General Public License", False),
        ("Open file", "Datei öffnen", "Open file", False),  # two words
    ],
)
def test_untranslated(source: str, reference: str, text: str, expected: bool) -> None:
    """The source again, where the reference is another text."""
    assert is_untranslated(sample(source, reference, text)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a a a", set()),
        ("a a a a", {("a",)}),
        ("A a. a a a a", {("a",)}),
        ("x a b a b a b a b y", {("a", "b")}),
        ("b a b a b a b a", {("a", "b")}),
        ("a b a b a b a", set()),
        ("a a a a a a a a", {("a",)}),
        ("und so weiter " * 4, {("so", "weiter", "und")}),
        ("a b c d " * 4, {("a", "b", "c", "d")}),
        ("a b c d e " * 8, set()),
        ("a b c d " * 3, set()),
        ("...", set()),
        ("Warten.....", {(".",)}),
        ("Kalender, Kalender, Kalender, Kalender, Ende", {(",", "kalender")}),
        ("文件文件文件文件", {("件", "文")}),
        ("1000000", set()),
        ("c c c c d d d d", {("c",), ("d",)}),
        ("Hundundundundund", {("-dun-",)}),
        ("undundund", set()),
        ("Nunundundundundunun", {("-dun-",)}),
        ("Datei abcabcabcabc", {("-abc-",)}),
        ("neeeein", {("-e-",)}),
        ("Schifffahrt", set()),
        ("________", set()),
        ("121212121212", set()),
        ("Lebensversicherung" * 4, {("-bensversicherungle-",)}),
        ("", set()),
    ],
)
def test_loops(text: str, expected: set[tuple[str, ...]]) -> None:
    """One to four tokens, or a part of a word, four times in a row; the smallest loop in its first rotation."""
    assert loops(text) == expected


def test_looping_is_what_the_reference_does_not_do() -> None:
    """Repetition that the reference has is right; going on until the limit is not."""
    assert is_looping(sample("s", "ja", "ja ja ja ja"))
    assert not is_looping(sample("s", "ja ja ja ja ja", "ja ja ja ja"))
    assert not is_looping(sample("s", "a b a b a b a b", "b a b a b a b a"))
    assert is_looping(sample("s", "ja ja ja ja", "ja ja ja ja nein nein nein nein"))
    assert is_looping(sample("s", "ja", "nein", ending=Ending.LIMIT))
    assert is_looping(sample("s", "ja", "jajajajaja"))
    assert not is_looping(sample("s", "Jajajaja!", "jajajajaja"))
    assert is_looping(sample("s", "und und und und", "undundundund"))
    assert not is_looping(sample("s", "ja", "ja"))


def test_faults_are_counted_once_each_and_sorted() -> None:
    """The worst first: the longest untranslated source, the output that is longest for its reference."""
    samples = [
        sample("Close the window", "Schließen Sie das Fenster", " ", number=1),
        sample(COPY, "Öffnen Sie die Datei", COPY, number=2),
        sample(f"{COPY} now", "Öffnen Sie die Datei", f"{COPY} now", number=3),
        sample("a", "ja", "ja " * 4, number=4),
        sample("b", "ja", "ja " * 40, number=5, ending=Ending.LIMIT),
        Sample(6, words(900), "viel", "", Output("", Ending.REFUSED, "900 tokens")),
    ]
    faults = find_faults(samples)

    numbers = {name: [s.number for s in getattr(faults, name)] for name in faults.__dataclass_fields__}
    assert numbers == {"empty": [1], "untranslated": [3, 2], "looping": [5, 4], "cut": [5], "refused": [6]}


def test_cut_is_unknown_where_the_system_does_not_say() -> None:
    """A file of translations tells nothing about limits; 0 would be a claim."""
    assert find_faults([sample("a", "b", "c", ending=Ending.UNKNOWN)]).cut is None
    assert find_faults([sample("a", "b", "c")]).cut == ()


def test_json_has_counts_groups_and_as_many_examples_as_asked_for() -> None:
    """Everything survives JSON; no text is in it unless asked for."""
    samples = [sample(f"{COPY} {i}", "Öffnen", f"{COPY} {i}", origin="man", number=i) for i in range(1, 6)]
    found = evaluate(samples)
    values = json.loads(json.dumps(found.to_dict(examples=2)))

    assert (values["sentences"], values["untranslated"], values["cut"], values["refused"]) == (5, 5, 0, 0)
    assert values["by_origin"] == [
        {"group": "man", "sentences": 5, "bleu": None, "chrf": values["chrf"], "length_ratio": values["length_ratio"]}
    ]
    assert [e["number"] for e in values["examples"]["untranslated"]] == [1, 2]
    assert COPY not in json.dumps(found.to_dict())


# Translating


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(
        (text for e in itertools.islice(examples(seed=3), 500) for text in (e.source, e.target)), 330
    )


def test_translate_all_keeps_order_and_drops_nothing(tokenizer: Tokenizer) -> None:
    """Batches are sorted by length, results are not; what the model does not take is marked."""
    sources = ["twenty-one thousand three hundred", "one", " ".join(["one"] * 60), "two", ""]
    seen: list[int] = []

    def copy(ids: Sequence[Sequence[int]], limits: Sequence[int]) -> list[list[int]]:
        seen.extend(len(row) for row in ids)
        assert len(ids) <= 2
        return [list(row[:limit]) for row, limit in zip(ids, limits, strict=True)]

    outputs = translate_all(
        copy, tokenizer, sources, max_source_tokens=20, max_new_tokens=lambda tokens: min(tokens, 4), rows=2
    )

    assert seen == sorted(seen)
    assert [output.ending for output in outputs] == [Ending.LIMIT, Ending.EOS, Ending.REFUSED, Ending.EOS, Ending.EOS]
    assert [outputs[i].text for i in (1, 2, 3, 4)] == ["one", "", "two", ""]
    assert sources[0].startswith(outputs[0].text)
    assert outputs[2].reason.endswith("tokens, the limit is 19")


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_cached_search_finds_the_tokens_of_the_reference(norm_position: Literal["pre", "post"]) -> None:
    """Rows of mixed lengths and limits, some of which end by EOS and leave the batch early."""
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=10,
        d_model=32,
        d_ff=64,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        norm_position=norm_position,
        max_source_tokens=30,
        max_target_tokens=30,
    )
    model = Transformer(config).eval()
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)  # texts that vary with the source
    sources = [[*torch.randint(4, 10, (row % 17,)).tolist(), 3] for row in range(48)]
    limits = [1 + row * 7 % 30 for row in range(48)]
    expected = greedy(model, sources, limits)

    assert greedy_cached(model, sources, limits) == expected
    assert len({tuple(ids) for ids in expected}) > 24
    assert 0 < sum(ids[-1] == 3 for ids in expected) < 48
