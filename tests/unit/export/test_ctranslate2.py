"""`dragoman export --format ctranslate2`: that engine gives our tokens, greedy and with beams, for every variant."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch

from dragoman.cli.main import main
from dragoman.export import bundle
from dragoman.export.ctranslate2 import unsupported, verify_ctranslate2, write_ctranslate2
from dragoman.export.errors import ExportError, VerificationError
from dragoman.export.token_names import complete, token_names
from dragoman.model.checkpoint import Checkpoint, save_checkpoint
from dragoman.model.folder_kinds import is_ctranslate2_model
from dragoman.model.languages import Languages, LanguageTokens
from dragoman.model.search import beam, greedy
from dragoman.model.tokenizers import PieceTokenizer, SymbolSide, SymbolTokenizer, Tokenizer
from dragoman.model.vocab import SpecialIds
from tests.fakes.bundles import make_checkpoint, random_sources, tiny_tokenizer

NEEDS = "pip install '.[ctranslate2]' to compare with CTranslate2"
LENGTHS = [2, 3, 5, 8, 13, 21, 34, 55, 70, 4, 9, 17]  # CTranslate2 runs no source without tokens
LIMIT = 24
BEAMS = 4
# Between them they have every setting that is carried over. Models whose norms come behind and whose output matrix is
# the target's embedding repeat one token for ever when their weights are random.
VARIANTS: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm_position": "post", "tied_embeddings": "source-target"},
    "post, sinusoidal in halves, silu": {
        "norm_position": "post", "positions": "sinusoidal-half", "activation": "silu", "tied_embeddings": "none",
    },
    "learned positions, gelu, output matrix of its own": {
        "positions": "learned", "activation": "gelu", "tied_embeddings": "source-target",
    },
    "rotary, grouped heads, RMS norm, gated, no bias, nothing tied": {
        "positions": "rotary", "num_key_value_heads": 2, "norm": "rms", "gated": True, "activation": "silu",
        "bias": False, "tied_embeddings": "none",
    },
    "relative, no scales but of the output": {
        "positions": "relative", "relative_buckets": 8, "relative_max_distance": 16, "norm": "rms", "gated": True,
        "activation": "gelu-tanh", "bias": False, "scale_attention": False, "scale_embedding": False,
        "scale_output": True,
    },
    "no positions, one head of keys, wide heads, a norm behind the last one": {
        "norm_position": "post", "positions": "none", "num_key_value_heads": 1, "d_head": 12, "final_norm": True,
        "bias": False, "tied_embeddings": "source-output",
    },
    "pre without a final norm, layers of unequal number": {
        "final_norm": False, "num_encoder_layers": 3, "num_decoder_layers": 1, "norm_epsilon": 0.3,
    },
    "norm on embedded tokens, positions from 2": {
        "norm_position": "post", "embedding_norm": True, "first_position": 2, "positions": "sinusoidal-half",
        "tied_embeddings": "none",
    },
}  # fmt: skip


def checkpoint_of(settings: dict[str, Any], tokenizer: Tokenizer | None = None) -> Checkpoint:
    """Return a model whose texts vary and end: with an output bias, ids that are never generated have no share.

    Our beam search leaves them their share of the probability, CTranslate2 gives it to the others.
    """
    checkpoint = make_checkpoint(gain=4, **{"output_bias": True, **settings})
    checkpoint = replace(checkpoint, tokenizer=tokenizer or checkpoint.tokenizer)
    special = checkpoint.tokenizer.special
    with torch.no_grad():
        bias = checkpoint.model.output_bias
        assert bias is not None
        bias[list(special.never_generated)] = -1e9
        bias[special.eos] = checkpoint_eos_bias(checkpoint)
    return checkpoint


def checkpoint_eos_bias(checkpoint: Checkpoint) -> float:
    """Return a bias that lets EOS be the best token at about one position in ten."""
    special, config = checkpoint.tokenizer.special, checkpoint.model.config
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, config.source_vocab_size or config.vocab_size, (16, 9), generator=generator)
    targets = torch.randint(4, config.vocab_size, (16, 9), generator=generator)
    targets[:, 0] = special.start
    with torch.inference_mode():
        logits = checkpoint.model.project(checkpoint.model(ids, torch.tensor([9] * 16), targets))
        others = logits.clone()
        others[..., special.eos] = -torch.inf
        return float((others.amax(-1) - logits[..., special.eos]).flatten().quantile(0.1))


class Converted:
    """A checkpoint, the folder that was written of it, and CTranslate2's translator."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, **options: Any) -> None:
        ctranslate2 = pytest.importorskip("ctranslate2", reason=NEEDS)
        self.checkpoint = checkpoint
        self.folder = folder
        write_ctranslate2(checkpoint, folder, precision=options.pop("precision", "fp32"))
        self.source_names, self.names = token_names(checkpoint.tokenizer, checkpoint.languages)
        self._translator = ctranslate2.Translator(str(folder), device="cpu", intra_threads=1, inter_threads=1)

    def translate(self, sources: list[list[int]], **options: Any) -> list[list[int]]:
        """Return target ids, EOS included, as our searches do; sources end with EOS, which CTranslate2 adds itself."""
        ids = {name: i for i, name in enumerate(self.names)}
        results = self._translator.translate_batch(
            [[self.source_names[i] for i in source[:-1]] for source in sources],
            max_decoding_length=LIMIT, return_end_token=True, max_input_length=0, min_decoding_length=0, **options,
        )  # fmt: skip
        return [[ids[name] for name in result.hypotheses[0]] for result in results]


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=list(VARIANTS))
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    return Converted(checkpoint_of(request.param), tmp_path_factory.mktemp("converted") / "model")


def is_varied(found: list[list[int]], eos: int) -> bool:
    """Whether equality proves something: texts differ, are no repetitions, and some end by themselves."""
    ended = sum(ids[-1] == eos for ids in found)
    return (
        len({tuple(ids) for ids in found}) > len(found) // 2 and max(len(set(ids)) for ids in found) > 3 and ended > 0
    )


def test_greedy_tokens_are_ours(converted: Converted) -> None:
    """Token by token, in a batch of unequal lengths."""
    checkpoint = converted.checkpoint
    special = checkpoint.tokenizer.special
    sources = random_sources(checkpoint, LENGTHS)
    expected = greedy(checkpoint.model, sources, [LIMIT] * len(sources), special)

    assert is_varied(expected, special.eos), expected
    assert converted.translate(sources, beam_size=1) == expected


def test_beam_tokens_are_ours(converted: Converted) -> None:
    """Four hypotheses each, which end when four have ended, ranked by the mean log-probability."""
    checkpoint = converted.checkpoint
    special = checkpoint.tokenizer.special
    sources = random_sources(checkpoint, LENGTHS)
    limits = [LIMIT] * len(sources)
    found = beam(checkpoint.model, sources, limits, special, beams=BEAMS, early_stopping=True)
    expected = [hypotheses[0].tokens for hypotheses in found]

    assert is_varied(expected, special.eos), expected
    assert expected != greedy(checkpoint.model, sources, limits, special)
    assert converted.translate(sources, beam_size=BEAMS, length_penalty=1) == expected


def test_ids_that_are_never_generated_stay_so(tmp_path: Path) -> None:
    """The model itself would choose padding everywhere; CTranslate2 has no list of ids to leave out."""
    checkpoint = checkpoint_of({})
    with torch.no_grad():
        bias = checkpoint.model.output_bias
        assert bias is not None
        bias[list(checkpoint.tokenizer.special.never_generated)] = 50.0
    sources = random_sources(checkpoint, LENGTHS)
    expected = greedy(checkpoint.model, sources, [LIMIT] * len(sources), checkpoint.tokenizer.special)

    assert Converted(checkpoint, tmp_path / "model").translate(sources, beam_size=1) == expected


def test_int8_is_smaller_and_close(tmp_path: Path) -> None:
    """Weights take a quarter; nearly all first tokens stay, though the weights are random."""
    checkpoint = checkpoint_of({})
    sources = random_sources(checkpoint, LENGTHS)
    expected = greedy(checkpoint.model, sources, [LIMIT] * len(sources), checkpoint.tokenizer.special)
    fp32 = Converted(checkpoint, tmp_path / "fp32")
    int8 = Converted(checkpoint, tmp_path / "int8", precision="int8")
    found = int8.translate(sources, beam_size=1)

    assert (int8.folder / "model.bin").stat().st_size < 0.5 * (fp32.folder / "model.bin").stat().st_size
    assert sum(one[0] == other[0] for one, other in zip(found, expected, strict=True)) >= 0.75 * len(sources)


def test_matrices_of_two_uses_are_stored_once(tmp_path: Path) -> None:
    """Source, target and output matrix are one in the model, and one in the file."""
    tied = Converted(checkpoint_of({}), tmp_path / "tied")
    untied = Converted(checkpoint_of({"tied_embeddings": "none"}), tmp_path / "untied")
    matrix = 330 * 32 * 4

    saved = (untied.folder / "model.bin").stat().st_size - (tied.folder / "model.bin").stat().st_size
    assert 2 * matrix - 500 < saved < 2 * matrix + 500


def test_languages_are_tokens_that_callers_give(tmp_path: Path) -> None:
    """In front of the source, and as a prefix of the target; both have names."""
    checkpoint = checkpoint_of({})
    languages = Languages(
        {"en": LanguageTokens(before_source=(300,)), "fr": LanguageTokens(before_source=(301,))},
        {"de": LanguageTokens(first_target=(302,)), "it": LanguageTokens(first_target=(303,))},
    )
    checkpoint = Checkpoint(Path(), checkpoint.model, checkpoint.tokenizer, "en", "de", 0, languages)
    converted = Converted(checkpoint, tmp_path / "model")
    plain = [ids for ids in random_sources(checkpoint, LENGTHS) if len(ids) < 70]
    for source, target in languages.pairs():
        sources = [languages.frame(ids, source, target) for ids in plain]
        first = languages.first_target(target)
        limits = [LIMIT - 1] * len(plain)
        expected = greedy(checkpoint.model, sources, limits, checkpoint.tokenizer.special, first)
        prefix = [[converted.names[i] for i in first]] * len(plain)
        found = converted.translate(sources, beam_size=1, target_prefix=prefix)
        assert found == [[*first, *ids] for ids in expected]


def test_two_vocabularies(tmp_path: Path) -> None:
    """Source and target count their tokens differently; EOS and the unknown one are called the same."""
    source = SymbolSide((*"abcdefgh", None, None), "characters", unk=9, after=(8,))
    target = SymbolSide((None, None, None, None, *(f"w{i}" for i in range(46))), "words", unk=1)
    tokenizer = SymbolTokenizer(source, SpecialIds(), target=target)
    settings = {"vocab_size": 50, "source_vocab_size": 10, "tied_embeddings": "none"}
    made = checkpoint_of(settings, tokenizer)
    converted = Converted(made, tmp_path / "model")
    texts = ["a", "bad", "ace", "fee x", "headache", "each", "deaf", "cafe", "beg", "hedge", "face", "gag"]
    sources = [tokenizer.encode(text) for text in texts]
    expected = greedy(made.model, sources, [LIMIT] * len(sources), tokenizer.special)

    assert is_varied(expected, tokenizer.special.eos), expected
    assert converted.translate(sources, beam_size=1) == expected
    assert verify_ctranslate2(converted.folder, made, precision="fp32") == "50 of 50 texts equal PyTorch's"
    assert (converted.source_names[8], converted.source_names[9]) == (converted.names[3], converted.names[1])


def test_texts_go_through_the_tokenizer_that_lies_beside_it(tmp_path: Path) -> None:
    """SentencePiece's own pieces are the names, so its usual calls are all that a caller needs."""
    checkpoint = checkpoint_of({})
    converted = Converted(checkpoint, tmp_path / "model")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(converted.folder / "tokenizer.model"))
    text = "seventeen weeks and three days"
    [result] = converted._translator.translate_batch(
        [processor.encode(text, out_type=str)], beam_size=1, max_decoding_length=LIMIT
    )
    ids = greedy(checkpoint.model, [checkpoint.tokenizer.encode(text)], [LIMIT], checkpoint.tokenizer.special)[0]

    assert processor.decode(result.hypotheses[0]) == checkpoint.tokenizer.decode(ids)
    config = json.loads((converted.folder / "config.json").read_text())
    assert (config["add_source_eos"], config["eos_token"], config["decoder_start_token"]) == (True, "</s>", "<s>")


def test_a_wrong_translation_is_refused(tmp_path: Path) -> None:
    """The gate compares tokens: a folder of other weights does not pass it."""
    one, other = checkpoint_of({}), checkpoint_of({"norm_position": "post"})
    converted = Converted(one, tmp_path / "model")
    with pytest.raises(VerificationError, match="other tokens than PyTorch for"):
        verify_ctranslate2(converted.folder, other, precision="fp32")


def test_what_it_has_no_form_for_is_refused_by_name(tmp_path: Path) -> None:
    """Recurrent decoders, and whatever setting this module does not know yet."""
    pytest.importorskip("ctranslate2", reason=NEEDS)
    with pytest.raises(ExportError, match="CTranslate2 has no form for this model: decoder_layer 'ssru'"):
        write_ctranslate2(make_checkpoint(decoder_layer="ssru"), tmp_path / "model", precision="fp32")

    with pytest.raises(ExportError, match="is not written in fp16; choose fp32 or int8"):
        write_ctranslate2(make_checkpoint(), tmp_path / "model", precision="fp16")

    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_is_new_is_refused_until_it_is_carried_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a model with it would be written as another model."""
    config = make_checkpoint(gated=True).model.config
    assert unsupported(config) == []
    monkeypatch.setattr("dragoman.export.ctranslate2._CARRIED", {"vocab_size", "d_model", "d_ff", "num_heads"})

    assert "gated True" in unsupported(config)


def test_a_folder_that_is_something_else_is_not_replaced(tmp_path: Path) -> None:
    """One of its own is."""
    converted = Converted(checkpoint_of({}), tmp_path / "model")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letters.txt").write_text("dear")
    with pytest.raises(ExportError, match="is not a model folder of CTranslate2"):
        write_ctranslate2(converted.checkpoint, tmp_path / "other", precision="fp32")
    write_ctranslate2(converted.checkpoint, tmp_path / "model", precision="int8")

    assert (tmp_path / "other" / "letters.txt").exists()
    assert is_ctranslate2_model(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "other"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checked against the model, and told to the caller."""
    pytest.importorskip("ctranslate2", reason=NEEDS)
    checkpoint = checkpoint_of({})
    save_checkpoint(tmp_path / "run", checkpoint.model, checkpoint.tokenizer, languages=("en", "de"), step=1)
    out = tmp_path / "model"
    command = ["export", "--checkpoint", str(tmp_path / "run"), "--out", str(out), "--format", "ctranslate2"]

    assert main(command) == 0
    assert "50 of 50 texts equal PyTorch's" in capsys.readouterr().out
    assert is_ctranslate2_model(out)

    assert main([*command, "--precision", "int8"]) == 0
    assert main([*command[:-4], "--out", str(tmp_path / "run"), *command[-2:]]) == 1
    assert "is not a model folder of CTranslate2" in capsys.readouterr().err


class Absent:
    """An import system that does not find CTranslate2."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Refuse the package, pass on all others."""
        if name.partition(".")[0] == "ctranslate2":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no part of the extra `export`: nobody else needs it."""
    checkpoint = make_checkpoint()
    save_checkpoint(tmp_path / "run", checkpoint.model, checkpoint.tokenizer, languages=("en", "de"), step=1)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ctranslate2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    options = ["--checkpoint", str(tmp_path / "run"), "--out", str(tmp_path / "model"), "--format", "ctranslate2"]

    assert main(["export", *options]) == 1
    assert "Install the extra 'ctranslate2'" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_every_id_has_one_name() -> None:
    """Missing names, names that are there twice, and special ids that a library counts in another order."""
    special = SpecialIds(pad=1, unk=3, start=0, eos=2)
    languages = Languages({"en": LanguageTokens((6,))}, {"de": LanguageTokens(first_target=(7,))})
    names = {1: "<unk>", 2: "<s>", 3: "</s>", 4: "a", 5: "a", 8: "<s>"}

    assert complete(names, 10, special, languages, numbered=True) == [
        "<s>", "<pad>", "</s>", "<unk>", "a", "<id 5>", "__en__", "__de__", "<id 8>", "<id 9>",
    ]  # fmt: skip
    assert complete({0: "<pad>"}, 2, SpecialIds(pad=0, unk=1, start=0, eos=1), None) == ["<pad>", "</s>"]


def test_pieces_that_are_counted_from_another_number() -> None:
    """As in fairseq: four special tokens stand in front where SentencePiece has three of its own."""
    model = tiny_tokenizer().files()["tokenizer.model"]
    special = SpecialIds(pad=1, unk=3, start=2, eos=2, suppressed=(0, 335))
    tokenizer = PieceTokenizer.fairseq(model, special, vocab_size=336)
    names, _ = token_names(tokenizer, Languages({"en": LanguageTokens(before_source=(335,))}, {"de": LanguageTokens()}))

    assert names[1:4] == ["<pad>", "</s>", "<unk>"]
    assert [names[i] for i in tokenizer.encode("seventeen")] == [
        *sentencepiece.SentencePieceProcessor(model_proto=model).encode("seventeen", out_type=str), "</s>",
    ]  # fmt: skip
    assert names[335] == "__en__"
    assert len(set(names)) == len(names) == 336


def test_a_committed_tokenizer_names_its_pieces() -> None:
    """All different, the control tokens of languages among them."""
    folder = Path(__file__).parents[2] / "data" / "tiny-v2"
    manifest = bundle.load_manifest(folder)
    source, target = token_names(bundle.load_tokenizer(folder, manifest), manifest.languages)

    assert source == target
    assert source[:7] == ["<pad>", "<unk>", "<s>", "</s>", "__en__", "__de__", "__fr__"]
    assert len(set(source)) == len(source) == 90
