"""Hugging Face's checkpoints, imported: the logits, the greedy and the beam texts of transformers for every family."""

from __future__ import annotations

import functools
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.model.cached_search import beam_cached, greedy_cached
from dragoman.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from dragoman.model.importers.hugging_face import import_model
from dragoman.model.padding import pad_rows
from dragoman.model.search import beam, greedy
from tests.fakes.hf_folders import FAMILIES, import_arguments, save_folder

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")

ROWS, NEW_TOKENS = 40, 16
TEXTS = ("one hundred and five euros", "Ünïcödé, and 3.14 % of it", "a", "two words, three signs; one end.")


@dataclass(frozen=True)
class Imported:
    """Both models of one folder, and sources with the tokens that begin their targets."""

    theirs: Any
    ours: Checkpoint
    sources: list[list[int]]
    first: tuple[int, ...]

    def generate(self, beams: int) -> tuple[list[list[int]], list[float]]:
        """Return what transformers generates, without start and forced tokens, and the scores of a beam search."""
        special = self.ours.tokenizer.special
        input_ids = pad_rows(self.sources, special.pad)
        found = self.theirs.generate(
            input_ids=input_ids,
            attention_mask=self.mask,
            max_new_tokens=NEW_TOKENS + len(self.first),
            num_beams=beams,
            do_sample=False,
            length_penalty=1.0,
            early_stopping=False,
            # Not suppress_tokens: that would take the forced token away, too.
            bad_words_ids=[[token] for token in special.never_generated],
            forced_bos_token_id=self.first[0] if self.first else None,
            forced_eos_token_id=None,
            decoder_start_token_id=special.start,
            return_dict_in_generate=True,
            output_scores=beams > 1,
        )
        begin = [special.start, *self.first]
        rows = []
        for row in found.sequences.tolist():
            assert row[: len(begin)] == begin
            text = row[len(begin) :]
            rows.append(text[: text.index(special.eos) + 1] if special.eos in text else text)
        return rows, found.sequences_scores.tolist() if beams > 1 else []

    @property
    def mask(self) -> torch.Tensor:
        """[B, S] int64, 1 where there is a token."""
        return pad_rows([[1] * len(source) for source in self.sources], 0)


def random_sources(checkpoint: Checkpoint, target: str) -> tuple[list[list[int]], tuple[int, ...]]:
    """Return framed sources of 1 to 20 random tokens, and what targets begin with."""
    chance, tokenizer, special = random.Random(3), checkpoint.tokenizer, checkpoint.tokenizer.special
    reserved = {special.pad, special.unk, special.start, special.eos, *special.suppressed}
    separate = tokenizer.source_vocab_size != tokenizer.vocab_size
    tokens = [i for i in range(5, tokenizer.source_vocab_size) if separate or i not in reserved]
    eos = tokenizer.encode("a")[-1]
    rows = [[*chance.choices(tokens, k=1 + i % 20), eos] for i in range(ROWS)]
    languages = checkpoint.languages
    if languages is None:
        return rows, ()
    source = checkpoint.source_language or next(iter(languages.sources))
    return [languages.frame(row, source, target) for row in rows], languages.first_target(target)


@functools.cache
def imported(name: str, folder: Path) -> Imported:
    theirs = save_folder(name, folder)
    ours = import_model(folder, import_arguments(name))
    return Imported(theirs, ours, *random_sources(ours, FAMILIES[name]().target))


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    return imported(request.param, tmp_path_factory.mktemp("folder"))


@torch.inference_mode()
def test_logits_are_those_of_transformers(pair: Imported) -> None:
    """Of 40 padded sources and 6 random target tokens: within 1e-4."""
    model, special = pair.ours.model, pair.ours.tokenizer.special
    torch.manual_seed(1)
    target = torch.randint(5, 200, (ROWS, 7))
    target[:, 0] = special.start
    source_ids = pad_rows(pair.sources, special.pad)
    expected = pair.theirs(input_ids=source_ids, attention_mask=pair.mask, decoder_input_ids=target).logits
    found = model.project(model(source_ids, pair.mask.sum(dim=1), target))

    assert expected.std() > 0.1
    assert (found - expected).abs().max() < 1e-4


def test_greedy_texts_are_those_of_transformers(pair: Imported) -> None:
    """40 of 40, token by token: texts that differ, some ended by EOS and some by the limit."""
    expected, _ = pair.generate(1)
    special = pair.ours.tokenizer.special
    found = greedy(pair.ours.model, pair.sources, [NEW_TOKENS] * ROWS, special, pair.first)

    assert found == expected
    assert len({tuple(text) for text in expected}) > ROWS // 2
    assert 0 < sum(text[-1] == special.eos for text in expected) < ROWS


def test_beam_texts_are_those_of_transformers(pair: Imported) -> None:
    """Likewise with four beams, and with the scores; they are not those of greedy search."""
    expected, scores = pair.generate(4)
    model, special = pair.ours.model, pair.ours.tokenizer.special
    found = beam_cached(model, pair.sources, [NEW_TOKENS] * ROWS, special, beams=4, first=pair.first)
    slow = beam(model, pair.sources[:3], [NEW_TOKENS] * 3, special, beams=4, first=pair.first)

    assert [best[0].tokens for best in found] == expected
    assert [best[0].score for best in found] == pytest.approx(scores, abs=1e-4)
    assert [best[0].tokens for best in slow] == expected[:3]
    assert expected != greedy_cached(model, pair.sources, [NEW_TOKENS] * ROWS, special, pair.first)


def test_a_saved_checkpoint_says_the_same(pair: Imported, tmp_path: Path) -> None:
    """Weights, tokenizer, special ids and languages survive our own format."""
    ours = pair.ours
    languages = (ours.source_language, ours.target_language)
    save_checkpoint(tmp_path, ours.model, ours.tokenizer, languages=languages, step=0, several=ours.languages)
    again = load_checkpoint(tmp_path)
    limits, rows = [NEW_TOKENS] * 4, pair.sources[:4]

    assert (again.languages, again.tokenizer.special) == (ours.languages, ours.tokenizer.special)
    assert [again.tokenizer.encode(text) for text in TEXTS] == [ours.tokenizer.encode(text) for text in TEXTS]
    assert greedy_cached(again.model, rows, limits, again.tokenizer.special, pair.first) == greedy_cached(
        ours.model, rows, limits, ours.tokenizer.special, pair.first
    )


@pytest.mark.parametrize(
    ("name", "source", "target", "prefix"),
    [
        ("marian", "en", "de", ""),
        ("marian, separate vocabularies", "en", "de", ""),
        ("marian, several targets", "nl", "pt", ">>pt_br<< "),
        ("m2m100", "en", "zh", ""),
        ("nllb", "en", "zh-Hans", ""),
        ("bart", "en", "de", ""),
        ("mbart", "en", "de", ""),
        ("mbart-50", "en", "sl", ""),
        ("t5", "en", "fr", "translate English to French: "),
        ("t5 v1.1", "en", "de", "one hundred: "),
        ("mt5", "en", "de", ""),
    ],
)
def test_source_ids_are_those_of_transformers(name: str, source: str, target: str, prefix: str, tmp_path: Path) -> None:
    """With the tokens of both languages, or the prefix, where its tokenizer puts them, also if it was saved again."""
    save_folder(name, tmp_path)
    kind, options = FAMILIES[name]().tokenizer
    theirs = getattr(transformers, kind).from_pretrained(tmp_path, **options)
    theirs.save_pretrained(tmp_path)
    ours = import_model(tmp_path, import_arguments(name))
    found = [ours.tokenizer.encode(text) for text in TEXTS]
    if ours.languages is not None:
        found = [ours.languages.frame(ids, source, target) for ids in found]

    assert found == [theirs(prefix + text)["input_ids"] for text in TEXTS]


def test_transformers_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The importer reads the files itself."""
    save_folder("nllb", tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)

    assert import_model(tmp_path, import_arguments("nllb")).model.config.num_encoder_layers == 2


def tokens_of(name: str, folder: Path, **options: Any) -> Any:
    save_folder(name, folder)
    return import_model(folder, import_arguments(name, **options))


def test_languages_of_nllb_have_short_tags(tmp_path: Path) -> None:
    """The script stays where the language alone would not tell; the first code follows the pieces."""
    found = tokens_of("nllb", tmp_path, target_language="zh-Hant")
    vocabulary = found.tokenizer.vocab_size - 9  # six codes, the mask, two unused entries

    assert list(found.languages.targets) == ["ace-Arab", "ace-Latn", "de", "en", "zh-Hans", "zh-Hant"]
    assert (found.source_language, found.target_language) == ("en", "zh-Hant")
    assert found.languages.frame([7, 2], "de", "en") == [vocabulary + 2, 7, 2]
    assert found.languages.first_target("en") == (vocabulary + 3,)
    assert set(range(vocabulary, vocabulary + 9)) | {0} == set(found.tokenizer.special.suppressed)


def test_legacy_nllb_has_the_code_behind(tmp_path: Path) -> None:
    """As its tokenizer's setting says."""
    save_folder("nllb", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "NllbTokenizer", "legacy_behaviour": true}')
    found = import_model(tmp_path, import_arguments("nllb"))

    assert found.languages is not None
    assert found.languages.frame([7, 2], "de", "en") == [7, 2, found.tokenizer.vocab_size - 7]


def test_ids_of_codes_come_from_the_files_that_say_them(tmp_path: Path) -> None:
    """Where a folder lists added tokens with their ids, those count."""
    save_folder("nllb", tmp_path)
    size = import_model(tmp_path, import_arguments("nllb")).tokenizer.vocab_size
    (tmp_path / "added_tokens.json").write_text(f'{{"fra_Latn": {size - 1}, "deu_Latn": {size - 2}, "<mask>": 300}}')
    found = import_model(tmp_path, import_arguments("nllb")).languages

    assert found is not None
    assert (found.first_target("fr"), found.first_target("de")) == ((size - 1,), (size - 2,))


def test_the_first_mbart_has_one_target(tmp_path: Path) -> None:
    """The decoder starts with its code; the source's code stands behind the text."""
    found = tokens_of("mbart", tmp_path, target_language="de")
    pieces = found.tokenizer.vocab_size - 26

    assert list(found.languages.targets) == ["de"]
    assert found.tokenizer.special.start == pieces + 2
    assert found.languages.frame([7, 2], "ro", "de") == [7, 2, pieces + 19]


def test_mbart_without_a_start_token_is_told_the_target(tmp_path: Path) -> None:
    """By the command."""
    save_folder("mbart", tmp_path, decoder_start_token_id=None)
    found = import_model(tmp_path, import_arguments("mbart", target_language="ro"))

    assert found.tokenizer.special.start == found.tokenizer.vocab_size - 26 + 19
    assert found.target_language == "ro"


def test_languages_of_marian(tmp_path: Path) -> None:
    """Targets are those of the vocabulary, sources those that the tokenizer names."""
    found = tokens_of("marian, several targets", tmp_path, source_language=None)

    assert list(found.languages.sources) == ["en", "nl"]
    assert list(found.languages.targets) == ["de", "fr", "pt"]
    codes = {tokens.before_source[0] for tokens in found.languages.targets.values()}
    assert codes == set(found.tokenizer.special.suppressed)


def test_a_pair_of_marian_needs_no_tokens(tmp_path: Path) -> None:
    """Codes with three letters become BCP-47 tags; the shorter of two limits counts."""
    found = tokens_of("marian, separate vocabularies", tmp_path)

    assert (found.languages, found.source_language, found.target_language) == (None, "en", "de")
    assert tokens_of("marian", tmp_path / "other").model.config.max_source_tokens == 60


def test_prefixes_of_t5_come_from_its_tasks_or_from_the_command(tmp_path: Path) -> None:
    """What is no translation is left out."""
    found = tokens_of("t5", tmp_path)
    german, french = (found.languages.targets[tag].before_source for tag in ("de", "fr"))

    assert (list(found.languages.sources), list(found.languages.targets)) == (["en"], ["de", "fr"])
    assert len(german) > 2
    assert german != french
    given = {"source_language": "en", "target_language": "fr", "prefix": "translate English to French:"}
    assert import_model(tmp_path, import_arguments("t5", **given)).languages.targets == {  # type: ignore[union-attr]  # not None
        "fr": found.languages.targets["fr"]
    }
    assert import_model(tmp_path, import_arguments("t5", **{**given, "prefix": ""})).languages is None


def test_a_bart_that_is_not_made_to_begin_with_its_token_may_do_so(tmp_path: Path) -> None:
    """It was trained to write it first; one that is made to must not write it again."""
    free, forced = (tokens_of(name, tmp_path / name) for name in ("bart, nothing forced", "bart"))

    assert 0 not in free.tokenizer.special.never_generated
    assert 0 in forced.tokenizer.special.never_generated
    assert forced.languages.first_target("de") == (0,)
    assert forced.tokenizer.encode("a")[0] == free.tokenizer.encode("a")[0] == 0
