"""OpenNMT-py checkpoints: against the library itself where it can be fetched, and against its layout written out."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from torch import Tensor
from torch.nn import functional

from dragoman.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from dragoman.model.errors import ImportFailed
from dragoman.model.importers import importer
from dragoman.model.search import beam, greedy
from dragoman.model.vocab import SpecialIds
from tests.fakes import original_opennmt
from tests.fakes.packages import installed, run_script, unpacked
from tests.fakes.plain_transformer import Naming, Plain, PlainTransformer
from tests.fakes.references import Record, assert_recorded, assert_same, enliven, random_sources

IDS = SpecialIds(pad=1, unk=0, start=2, eos=3)
SOURCES = random_sources(16, 4, 32, around=((), ()))
SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
NAMING = Naming(
    layers={"encoder": "encoder.transformer.{}", "decoder": "decoder.transformer_layers.{}"},
    parts={
        "encoder": {
            "self": "self_attn", "expand": "feed_forward.w_1", "contract": "feed_forward.w_2",
            "gate": "feed_forward.w_3", "norm_self": "layer_norm", "norm_forward": "feed_forward.layer_norm",
        },
        "decoder": {
            "self": "self_attn", "cross": "context_attn", "expand": "feed_forward.w_1",
            "contract": "feed_forward.w_2", "gate": "feed_forward.w_3", "norm_self": "layer_norm_1",
            "norm_cross": "layer_norm_2", "norm_forward": "feed_forward.layer_norm",
        },
    },
    heads=("linear_query", "linear_keys", "linear_values", "final_linear"),
    tables=(
        "encoder.embeddings.make_embedding.emb_luts.0", "decoder.embeddings.make_embedding.emb_luts.0", "generator",
    ),
    final={"encoder": "encoder.layer_norm", "decoder": "decoder.layer_norm"},
)  # fmt: skip


def import_file(path: Path, **options: Any) -> Checkpoint:
    given: dict[str, Any] = dict.fromkeys(("codes", "target_codes", "sentencepiece", "target_sentencepiece"))
    arguments = argparse.Namespace(**{**given, "max_tokens": 48, **options})
    return importer("opennmt").import_model(path, arguments)


# OpenNMT-py itself

ROTARY = {"position_encoding": False, "max_relative_positions": -1}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "concatenated sinusoids": {"options": {"position_encoding_type": "SinusoidalConcat"}},
    "tied output": {"options": {"share_decoder_embeddings": True, "pos_ffn_activation_fn": "gelu"}},
    "one vocabulary": {
        "options": {"share_embeddings": True, "share_decoder_embeddings": True}, "layers": 4.0, "embeddings": 1.0,
    },
    "rotary": {"options": ROTARY},
    "rotary halves": {"options": {**ROTARY, "rotary_interleave": False}},
    "no positions": {"options": {"position_encoding": False}},
    "gated rms": {"options": {**ROTARY, "layer_norm": "rms", "pos_ffn_activation_fn": "silu", "norm_eps": 1e-5}},
    "gated gelu": {"options": {"pos_ffn_activation_fn": "gated-gelu"}},
    "grouped": {"options": {"num_kv": 2}},
    "one head of keys": {"options": {"multiquery": True}},
    "no biases": {"options": {"add_qkvbias": False, "add_ffnbias": False}},
    "safetensors": {"format": "safetensors", "options": {"layers": 1}},
}  # fmt: skip
OLDER = {"plain": {}, "one vocabulary": CASES["one vocabulary"], "gelu": CASES["tied output"]}
PACKAGES = {3: ("OpenNMT-py==3.5.1",), 2: ("OpenNMT-py==2.3.0", "torchtext==0.5.0")}


def make_originals(version: int, cases: dict[str, Any], folder: Path) -> Path:
    """Return a folder with a checkpoint and a record of each case, made by OpenNMT-py."""
    site = installed("ConfigArgParse==1.7", "pyonmttok==1.38.1", "six==1.17.0")
    (folder / "cases.json").write_text(json.dumps(cases), "utf-8")
    arguments = [str(version), str(folder / "cases.json"), str(folder / "made")]
    paths = [unpacked(package) for package in PACKAGES[version]]
    run_script(Path(original_opennmt.__file__), arguments, [*paths, site])
    return folder / "made"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_originals(3, CASES, tmp_path_factory.mktemp("opennmt3"))


@pytest.fixture(scope="module")
def older_originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_originals(2, OLDER, tmp_path_factory.mktemp("opennmt2"))


@pytest.mark.parametrize("case", CASES)
def test_logits_greedy_and_beam_are_those_of_version_3(case: str, originals: Path) -> None:
    """Logits, greedy tokens and four hypotheses; and what OpenNMT-py's own searches choose with beams of 1 and 4."""
    recorded = torch.load(originals / case / "record.pt")
    own = recorded.pop("own")
    checkpoint = import_file(originals / case / "model_step_1.pt")
    special, sources = checkpoint.tokenizer.special, recorded["sources"]
    limits = [original_opennmt.OWN_LIMIT] * len(sources)

    assert_recorded(Record(**recorded), checkpoint)
    assert greedy(checkpoint.model, sources, limits, special) == own["greedy"]
    chosen = beam(checkpoint.model, sources, limits, special, length_penalty=0.0)
    assert [row[0].tokens for row in chosen] == own["beam"]


@pytest.mark.parametrize("case", OLDER)
def test_logits_greedy_and_beam_are_those_of_version_2(case: str, older_originals: Path) -> None:
    """Logits, greedy tokens and four hypotheses; the vocabulary is read although torchtext is not there."""
    recorded = torch.load(older_originals / case / "record.pt")
    del recorded["own"]
    checkpoint = import_file(older_originals / case / "model_step_1.pt")

    assert_recorded(Record(**recorded), checkpoint)
    assert checkpoint.tokenizer.special == IDS
    first = checkpoint.tokenizer.encode("w00 w01" if case == "one vocabulary" else "s00 s01")
    assert first == ([4, 5] if case == "one vocabulary" else [2, 3])


# Its layout, written out


def formula(rows: int, width: int) -> Tensor:
    """Return the table of positions."""
    table = torch.zeros(rows, width)
    angles = torch.arange(rows)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000) / width))
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


def plain(**changes: Any) -> PlainTransformer:
    torch.manual_seed(5)
    given = {"positions": formula(60, 32), "scale": math.sqrt(32), "pre": True, "epsilon": 1e-6, "output_bias": True}
    model = PlainTransformer(Plain(**{**given, **changes}), NAMING)
    gains = {"layers": 4.0} if model.plain.tied != "none" else {"layers": 2.0, "embeddings": 3.0}
    enliven(model.parameters(), model.tables(), model, model.output, SOURCES, IDS, end=3.0, **gains)
    return model


def write(folder: Path, model: PlainTransformer, changes: dict[str, Any] | None = None, **options: Any) -> Path:
    settings = model.plain
    values = {
        "encoder_type": "transformer", "decoder_type": "transformer", "model_task": "seq2seq", "model_type": "text",
        "layers": -1, "enc_layers": settings.depth["encoder"], "dec_layers": settings.depth["decoder"],
        "hidden_size": settings.width, "transformer_ff": settings.forward, "heads": settings.heads,
        "position_encoding": True, "max_relative_positions": 0,
    }  # fmt: skip
    tensors = {name: tensor for name, tensor in model.state.items() if not name.startswith("generator")}
    for stack in ("encoder", "decoder"):
        tensors[f"{stack}.embeddings.make_embedding.pe.pe"] = formula(60, 32)[:, None]
    vocab = {
        "src": [*SPECIAL, *(f"s{i}" for i in range(settings.source - 4))],
        "tgt": [*SPECIAL, *(f"t{i}" for i in range(settings.target - 4))],
        "data_task": "seq2seq",
    }  # fmt: skip
    state = {
        "model": tensors,
        "generator": {name: model.state[f"generator.{name}"] for name in ("weight", "bias")},
        "vocab": vocab,
        "opt": argparse.Namespace(**{**values, **options}),
        "optim": {},
    }
    torch.save({**state, **(changes or {})}, folder / "model.pt")
    return folder


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"tied": "output", "activation": functional.gelu}, {"pos_ffn_activation_fn": "gelu"}),
        ({"attention_bias": False, "epsilon": 0.1}, {"norm_eps": 0.1}),
        ({"gated": True, "activation": functional.silu}, {"pos_ffn_activation_fn": "silu"}),
    ],
    ids=["plain", "tied", "no bias", "gated"],
)
def test_logits_greedy_and_beam_are_those_of_the_layout(
    settings: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    """Logits within 1e-4, the same tokens from greedy search and from a beam of four."""
    model = plain(**settings)

    assert_same(model, import_file(write(tmp_path, model, **options)), SOURCES)


def test_older_names(tmp_path: Path) -> None:
    """Layer norms and generator of versions before 3, masks of version 1, the width under another name."""
    model = plain()
    folder = write(tmp_path, model)
    state = torch.load(folder / "model.pt", weights_only=False)
    renamed = {}
    for name, tensor in state["model"].items():
        stem, _, last = name.rpartition(".")
        old = "layer_norm" in stem.rpartition(".")[2]
        renamed[f"{stem}.{({'weight': 'a_2', 'bias': 'b_2'})[last]}" if old else name] = tensor
    renamed["decoder.transformer_layers.0.mask"] = torch.ones(1, 9, 9)
    generator = {f"0.{name}": tensor for name, tensor in state["generator"].items()}
    del state["opt"].hidden_size
    state["opt"].rnn_size = 32
    torch.save({**state, "model": renamed, "generator": generator}, folder / "model.pt")

    assert any(name.endswith("a_2") for name in renamed)
    assert_same(model, import_file(folder), SOURCES)


def test_checkpoint_is_saved_and_loaded(tmp_path: Path) -> None:
    """Tokens and texts survive: nothing around a source, EOS behind a target, special names are unknown words."""
    checkpoint = import_file(write(tmp_path, plain()))
    loaded = load_checkpoint(
        save_checkpoint(tmp_path / "run", checkpoint.model, checkpoint.tokenizer, languages=("xx", "yy"), step=0)
    )

    assert loaded.tokenizer.encode("s0 s3 </s> t1") == [4, 7, 0, 0]
    assert loaded.tokenizer.added_ids == 0
    assert loaded.tokenizer.encode_target("t1") == [5, 3]
    assert loaded.tokenizer.decode([4, 7, 3]) == "t0 t3"
    assert loaded.model.config.max_source_tokens == 48


def test_another_start(tmp_path: Path) -> None:
    """A checkpoint may say what the decoder reads first."""
    model = plain()
    folder = write(tmp_path, model)
    state = torch.load(folder / "model.pt", weights_only=False)
    state["vocab"] |= {"decoder_start_token": "</s>"}
    torch.save(state, folder / "model.pt")

    assert import_file(folder).tokenizer.special.start == 3


def test_codes_and_pieces(tmp_path: Path) -> None:
    """subword-nmt and SentencePiece, with files of their own for the target or one for both."""
    folder = write(tmp_path, plain())
    state = torch.load(folder / "model.pt", weights_only=False)
    (tmp_path / "text").write_text("low lower lowest wide wider widest\n" * 20, "utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "spm"), vocab_size=20, model_type="bpe", minloglevel=2
    )
    model = sentencepiece.SentencePieceProcessor(str(tmp_path / "spm.model"))
    pieces = [model.id_to_piece(i) for i in range(3, 20)]
    parts = ["lo@@", "w", "low", "e@@", "r"]
    (tmp_path / "codes").write_text("#version: 0.2\nl o\ne r</w>\nlo w</w>\n", "utf-8")
    state["vocab"]["src"] = [*SPECIAL, *parts, *state["vocab"]["src"][9:]]
    state["vocab"]["tgt"] = [*SPECIAL, *pieces, *state["vocab"]["tgt"][21:]]
    torch.save(state, folder / "model.pt")
    tokenizer = import_file(folder, codes=tmp_path / "codes", target_sentencepiece=tmp_path / "spm.model").tokenizer

    assert tokenizer.encode("low lo") == [6, 0, 0]
    ids = tokenizer.encode_target("lower widest")
    assert ids == [i + 1 for i in model.encode("lower widest")] + [3]
    assert tokenizer.decode(ids) == "lower widest"
    state["vocab"]["src"][5] = "￭s"
    torch.save(state, folder / "model.pt")
    with pytest.raises(ImportFailed, match="were cut by OpenNMT's Tokenizer, which is not supported"):
        import_file(folder)


def test_options_that_we_cannot_follow_are_named_all_at_once(tmp_path: Path) -> None:
    """By name and value, with what is supported."""
    wrong: dict[str, Any] = {
        "encoder_type": "brnn", "self_attn_type": "average", "relative_positions_buckets": 32, "num_experts": 4,
        "parallel_residual": True, "copy_attn": True, "pos_ffn_activation_fn": "tanh", "sliding_window": 8,
        "max_relative_positions": 20, "layer_norm": "batch", "rotary_theta": 500000, "heads": "four",
    }  # fmt: skip
    with pytest.raises(ImportFailed) as failure:
        import_file(write(tmp_path, plain(), **wrong))
    for part in (
        "encoder_type is 'brnn'; supported is 'transformer'", "self_attn_type is 'average'",
        "relative_positions_buckets is 32; supported is 0", "num_experts is 4", "parallel_residual is True",
        "copy_attn is True; supported is False", "pos_ffn_activation_fn is 'tanh'; supported are relu, gelu",
        "sliding_window is 8", "max_relative_positions is 20; supported is 0 or -1", "layer_norm is 'batch'",
        "rotary_theta is 500000", "heads is 'four'; it must be a whole number",
    ):  # fmt: skip
        assert part in str(failure.value), part


def test_missing_and_surplus_tensors_are_named(tmp_path: Path) -> None:
    """All of them, and what has another size than the options say."""
    state = torch.load(write(tmp_path, plain()) / "model.pt", weights_only=False)
    state["model"]["encoder.embeddings.make_embedding.emb_luts.1.weight"] = torch.ones(3, 4)
    del state["model"]["decoder.transformer_layers.2.context_attn.linear_keys.weight"], state["generator"]["bias"]
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(ImportFailed) as failure:
        import_file(tmp_path)
    assert "context_attn.linear_keys.weight, generator.bias" in str(failure.value)
    assert "emb_luts.1.weight [3, 4]" in str(failure.value)
    with pytest.raises(ImportFailed, match=r"expand.weight is \[48, 32\], the configuration says \[64, 32\]"):
        import_file(write(tmp_path, plain(), transformer_ff=64))
    with pytest.raises(ImportFailed, match=r"pe.pe is not the formula that position_encoding_type names"):
        import_file(write(tmp_path, plain(), position_encoding_type="SinusoidalConcat"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab": {}}, "has no vocabularies 'src' and 'tgt' under 'vocab'"),
        ({"vocab": {"src": SPECIAL, "tgt": SPECIAL}}, "the source vocabulary has 4 symbols, the embedding 36"),
        ({"vocab": {"src": [f"s{i}" for i in range(36)], "tgt": [f"t{i}" for i in range(40)]}},
         "the vocabulary lacks <unk>, <blank>, </s>, <s>, <unk> of the source"),
        ({"opt": None}, "has no options under 'opt' and no 'vocab'; it is no checkpoint"),
        ({"model": None}, r"has no tensors under 'model', and there is no model.safetensors beside it"),
    ],
)  # fmt: skip
def test_other_files_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """With what is missing in them."""
    with pytest.raises(ImportFailed, match=message):
        import_file(write(tmp_path, plain(), changes))


def test_a_pickle_that_runs_code_does_not(tmp_path: Path) -> None:
    """Not even where it pretends to be a part of torchtext's vocabulary."""
    owned = tmp_path / "owned"

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (owned,))

    with pytest.raises(ImportFailed, match="could run code"):
        import_file(write(tmp_path, plain(), {"vocab": {"src": Payload()}}))
    assert not owned.exists()
