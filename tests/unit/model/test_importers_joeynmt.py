"""JoeyNMT models: against JoeyNMT itself where it can be fetched, and against its layout written out."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import yaml
from torch import Tensor
from torch.nn import functional

from dragoman.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from dragoman.model.errors import ImportFailed
from dragoman.model.importers import importer
from dragoman.model.search import beam, greedy
from dragoman.model.vocab import SpecialIds
from tests.fakes import original_joeynmt
from tests.fakes.packages import run_script, unpacked
from tests.fakes.plain_transformer import Naming, Plain, PlainTransformer
from tests.fakes.references import Record, assert_recorded, assert_same, enliven, random_sources

IDS = SpecialIds(pad=1, unk=0, start=2, eos=3)
SOURCES = random_sources(16, 4, 36, around=((), (3,)))
SPECIAL = ["<unk>", "<pad>", "<s>", "</s>"]
FORWARD = {"expand": "feed_forward.pwff_layer.0", "contract": "feed_forward.pwff_layer.3",
           "norm_forward": "feed_forward.layer_norm"}  # fmt: skip
NAMING = Naming(
    layers={"encoder": "encoder.layers.{}", "decoder": "decoder.layers.{}"},
    parts={
        "encoder": {"self": "src_src_att", "norm_self": "layer_norm", **FORWARD},
        "decoder": {"self": "trg_trg_att", "cross": "src_trg_att", "norm_self": "x_layer_norm",
                    "norm_cross": "dec_layer_norm", **FORWARD},
    },
    heads=("q_layer", "k_layer", "v_layer", "output_layer"),
    tables=("src_embed.lut", "trg_embed.lut", "decoder.output_layer"),
    final={"encoder": "encoder.layer_norm", "decoder": "decoder.layer_norm"},
)  # fmt: skip


def import_folder(path: Path, **options: Any) -> Checkpoint:
    files = ("source_codes", "target_codes", "source_sentencepiece", "target_sentencepiece")
    given: dict[str, Any] = {**dict.fromkeys(files), "max_tokens": 48, **options}
    return importer("joeynmt").import_model(path, argparse.Namespace(**given))


# JoeyNMT itself

TIED = {"shared": True, "layers": 4.0, "embeddings": 1.0}
CASES: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"stacks": {"layer_norm": "post"}, "layers": 1.0},
    "no scale": {"stacks": {"embeddings": {"embedding_dim": 32, "scale": False}}},
    "gelu": {"stacks": {"activation": "gelu"}},
    "swish, tied output": {"stacks": {"activation": "swish"}, "model": {"tied_softmax": True}},
    "tied embeddings": {"model": {"tied_embeddings": True}, **TIED},
    "all tied": {"model": {"tied_embeddings": True, "tied_softmax": True}, **TIED},
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("joeynmt")
    (folder / "cases.json").write_text(json.dumps(CASES), "utf-8")
    arguments = [str(folder / "cases.json"), str(folder / "made")]
    run_script(Path(original_joeynmt.__file__), arguments, [unpacked("joeynmt==2.3.0")])
    return folder / "made"


@pytest.mark.parametrize("case", CASES)
def test_logits_greedy_and_beam_are_those_of_joeynmt(case: str, originals: Path) -> None:
    """Logits, greedy tokens and four hypotheses; and what JoeyNMT's own searches choose with beams of 1 and 4."""
    recorded = torch.load(originals / case / "record.pt")
    own = recorded.pop("own")
    checkpoint = import_folder(originals / case)
    special, sources = checkpoint.tokenizer.special, recorded["sources"]
    limits = [original_joeynmt.OWN_LIMIT] * len(sources)

    assert_recorded(Record(**recorded), checkpoint)
    found = greedy(checkpoint.model, sources, limits, special)
    # Its greedy search may write padding in the middle of a text, which ours never does.
    comparable = [row for row, ids in enumerate(own["greedy"]) if special.pad not in ids]
    assert len(comparable) > len(sources) // 2
    assert [found[row] for row in comparable] == [own["greedy"][row] for row in comparable]
    chosen = beam(checkpoint.model, sources, limits, special, length_penalty=0.0)
    assert [row[0].tokens for row in chosen] == own["beam"]
    assert (checkpoint.source_language, checkpoint.target_language) == ("xx", "yy")


# Its layout, written out


def formula(rows: int, width: int) -> Tensor:
    """Return the table of positions."""
    table = torch.zeros(rows, width)
    angles = torch.arange(rows)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000) / width))
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


def plain(**changes: Any) -> PlainTransformer:
    torch.manual_seed(5)
    given = {"positions": formula(60, 32), "scale": math.sqrt(32), "pre": True, "epsilon": 1e-6}
    model = PlainTransformer(Plain(**{**given, **changes}), NAMING)
    gains = {"layers": 2.0, "embeddings": 3.0} if model.plain.pre else {"layers": 1.0}
    if model.plain.tied != "none":
        gains = {"layers": 4.0}
    enliven(model.parameters(), model.tables(), model, model.output, SOURCES, IDS, end=3.0, **gains)
    return model


def write(
    folder: Path,
    model: PlainTransformer,
    *,
    stacks: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
) -> Path:
    settings = model.plain
    stack = {
        "type": "transformer", "num_heads": settings.heads, "hidden_size": settings.width,
        "ff_size": settings.forward, "layer_norm": "pre" if settings.pre else "post",
        "embeddings": {"embedding_dim": settings.width, "scale": settings.scale != 1.0}, **(stacks or {}),
    }  # fmt: skip
    stack = {name: value for name, value in stack.items() if name not in without}
    side = {"level": "word"}
    configuration = {
        "data": {"src": {"lang": "deu", **side}, "trg": {"lang": "eng", **side}, **(data or {})},
        "model": {name: {**stack, "num_layers": settings.depth[name]} for name in ("encoder", "decoder")},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(configuration), "utf-8")
    tensors = {**model.state, "encoder.pe.pe": formula(60, 32)[None], "decoder.pe.pe": formula(60, 32)[None]}
    torch.save({"model_state": tensors, "best_ckpt_score": np.float64(1.5)}, folder / "best.ckpt")
    for name, size, letter in (("src", settings.source, "s"), ("trg", settings.target, "t")):
        lines = [*SPECIAL, *(f"{letter}{i}" for i in range(size - 4))]
        (folder / f"{name}_vocab.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


@pytest.mark.parametrize(
    ("settings", "stacks"),
    [
        ({}, {}),
        ({"pre": False}, {}),
        ({"tied": "output", "activation": functional.gelu, "scale": 1.0}, {"activation": "gelu"}),
    ],
    ids=["pre", "post", "tied"],
)
def test_logits_greedy_and_beam_are_those_of_the_layout(
    settings: dict[str, Any], stacks: dict[str, Any], tmp_path: Path
) -> None:
    """Logits within 1e-4, the same tokens from greedy search and from a beam of four."""
    model = plain(**settings)
    checkpoint = import_folder(write(tmp_path, model, stacks=stacks))

    assert_same(model, checkpoint, SOURCES)
    assert (checkpoint.source_language, checkpoint.target_language) == ("de", "en")


def test_version_1(tmp_path: Path) -> None:
    """Its configuration says neither where norms are nor how each side is cut; languages are texts."""
    model = plain()
    data = {"src": "de", "trg": "en", "level": "bpe", "lowercase": True}
    folder = write(tmp_path, model, data=data, without=("layer_norm",))
    (folder / "trg_vocab.txt").write_text("\n".join([*SPECIAL, "lo@@", "w", *(f"t{i}" for i in range(34))]), "utf-8")
    checkpoint = import_folder(folder)

    assert_same(model, checkpoint, SOURCES)
    assert (checkpoint.source_language, checkpoint.target_language) == ("de", "en")
    assert checkpoint.tokenizer.encode("S0 s1") == [4, 5, 3]
    assert checkpoint.tokenizer.decode([4, 5, 6, 3]) == "low t0"


def test_checkpoint_is_saved_and_loaded(tmp_path: Path) -> None:
    """Tokens and texts survive; a word that spells a special symbol is unknown."""
    checkpoint = import_folder(write(tmp_path, plain()))
    loaded = load_checkpoint(
        save_checkpoint(tmp_path / "run", checkpoint.model, checkpoint.tokenizer, languages=("de", "en"), step=0)
    )

    assert loaded.tokenizer.encode("s0 s3 </s> t1") == [4, 7, 0, 0, 3]
    assert loaded.tokenizer.decode([4, 7, 3]) == "t0 t3"
    assert greedy(loaded.model, SOURCES[:3], [9] * 3, IDS) == greedy(checkpoint.model, SOURCES[:3], [9] * 3, IDS)


def test_characters_codes_and_pieces(tmp_path: Path) -> None:
    """Every way to cut a text, with files that the configuration names and that lie in the folder."""
    (tmp_path / "text").write_text("low lower lowest wide wider widest\n" * 20, "utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "spm"), vocab_size=20, model_type="bpe", minloglevel=2
    )
    model = sentencepiece.SentencePieceProcessor(str(tmp_path / "spm.model"))
    pieces = [model.id_to_piece(i) for i in range(3, 20)]
    (tmp_path / "bpe.codes").write_text("#version: 0.2\nl o\ne r</w>\nlo w</w>\n", "utf-8")
    codes = {"lang": "de", "level": "bpe", "tokenizer_type": "subword-nmt", "lowercase": True,
             "tokenizer_cfg": {"codes": "/elsewhere/bpe.codes", "pretokenizer": "none"}}  # fmt: skip
    spm = {"lang": "en", "level": "bpe", "tokenizer_type": "sentencepiece",
           "tokenizer_cfg": {"model_file": "/elsewhere/spm.model"}}  # fmt: skip
    folder = write(tmp_path, plain(), data={"src": codes, "trg": spm})
    words = [*SPECIAL, "lo@@", "w", "low", "e@@", "r", *(f"s{i}" for i in range(27))]
    (folder / "src_vocab.txt").write_text("\n".join(words), "utf-8")
    (folder / "trg_vocab.txt").write_text("\n".join([*SPECIAL, *pieces, *(f"t{i}" for i in range(19))]), "utf-8")
    tokenizer = import_folder(folder).tokenizer

    assert tokenizer.encode("Low lo") == [6, 0, 0, 3]
    ids = tokenizer.encode_target("lower widest")
    assert ids == [i + 1 for i in model.encode("lower widest")] + [3]
    assert tokenizer.decode(ids) == "lower widest"
    characters = {"lang": "de", "level": "char"}
    folder = write(tmp_path, plain(), data={"src": characters, "trg": characters})
    for name, size in (("src", 36), ("trg", 40)):
        letters = [*SPECIAL, "\u2581", "a", "b", *(chr(0x100 + i) for i in range(size - 7))]
        (folder / f"{name}_vocab.txt").write_text("\n".join(letters), "utf-8")
    tokenizer = import_folder(folder).tokenizer
    assert tokenizer.encode("a b\u2581") == [5, 4, 6, 0, 3]
    assert tokenizer.decode([5, 4, 6, 3]) == "a b"


def test_files_that_the_configuration_names_may_be_given(tmp_path: Path) -> None:
    """Where they lie on another machine."""
    side = {"level": "bpe", "tokenizer_type": "subword-nmt", "tokenizer_cfg": {"codes": "/elsewhere/bpe.codes"}}
    folder = write(tmp_path, plain(), data={"src": {"lang": "de", **side}, "trg": {"lang": "en", **side}})
    with pytest.raises(
        ImportFailed, match=r"names /elsewhere/bpe.codes, which is not there; give it with --source-codes"
    ):
        import_folder(folder)
    (tmp_path / "mine").write_text("#version: 0.2\ns 0</w>\n", "utf-8")
    tokenizer = import_folder(folder, source_codes=tmp_path / "mine", target_codes=tmp_path / "mine").tokenizer
    assert tokenizer.encode("s0") == [4, 3]


def test_options_that_we_cannot_follow_are_named_all_at_once(tmp_path: Path) -> None:
    """By name and value, with what is supported."""
    stacks: dict[str, Any] = {
        "type": "recurrent", "alpha": 0.5, "activation": "tanh", "layer_norm": "both", "num_heads": "four",
        "embeddings": {"embedding_dim": 16, "scale": True},
    }  # fmt: skip
    data: dict[str, Any] = {
        "src": {"lang": "de", "level": "word", "normalize": True, "tokenizer_cfg": {"pretokenizer": "moses"}},
        "special_symbols": {"sep_token": "<sep>", "lang_tags": ["<de>"]},
    }
    with pytest.raises(ImportFailed) as failure:
        import_folder(write(tmp_path, plain(), stacks=stacks, data=data))
    for part in (
        "encoder.type is 'recurrent'; supported is 'transformer'", "decoder.type is 'recurrent'",
        "encoder.alpha is 0.5; supported is 1", "encoder.activation is 'tanh'; supported are relu, gelu, swish",
        "encoder.layer_norm is 'both' and decoder.layer_norm is 'both'; supported is 'pre' for both",
        "encoder.num_heads is 'four'; it must be a whole number", "encoder.embeddings.embedding_dim is 16",
        "src.normalize is True; supported is False", "src.pretokenizer is 'moses'; supported is 'none'",
        "sep_token is '<sep>'; prompts are not supported", "lang_tags is ['<de>']",
    ):  # fmt: skip
        assert part in str(failure.value), part


def test_defaults_of_version_2_are_refused(tmp_path: Path) -> None:
    """It has norms in front of sublayers in the encoder and behind them in the decoder, if nothing is said."""
    model = plain(pre=False)
    with pytest.raises(ImportFailed, match=r"encoder.layer_norm is 'not given' and decoder.layer_norm is 'not given'"):
        import_folder(write(tmp_path, model, without=("layer_norm",)))


def test_missing_and_surplus_tensors_are_named(tmp_path: Path) -> None:
    """All of them, and what has another size than the configuration says."""
    model = plain()
    del model.state["decoder.layers.2.src_trg_att.k_layer.weight"], model.state["encoder.layers.0.layer_norm.bias"]
    model.state["encoder.rnn.weight"] = torch.ones(3, 4)
    with pytest.raises(ImportFailed) as failure:
        import_folder(write(tmp_path, model))
    assert "encoder.layers.0.layer_norm.bias, decoder.layers.2.src_trg_att.k_layer.weight" in str(failure.value)
    assert "encoder.rnn.weight [3, 4]" in str(failure.value)
    with pytest.raises(ImportFailed, match=r"expand.weight is \[48, 32\], the configuration says \[64, 32\]"):
        import_folder(write(tmp_path, plain(), stacks={"ff_size": 64}))


def test_other_files_are_refused(tmp_path: Path) -> None:
    """With what is wrong with them."""
    folder = write(tmp_path, plain())
    (folder / "src_vocab.txt").write_text("a\n", "utf-8")
    with pytest.raises(ImportFailed, match=r"src_vocab.txt: has 5 symbols, the embedding 36"):
        import_folder(folder)
    (folder / "src_vocab.txt").unlink()
    with pytest.raises(ImportFailed, match=r"src_vocab.txt: cannot be read"):
        import_folder(folder)
    torch.save({"weights": {}}, folder / "best.ckpt")
    with pytest.raises(ImportFailed, match="has no tensors under 'model_state'"):
        import_folder(folder)
    (folder / "config.yaml").write_text("name: x\n", "utf-8")
    with pytest.raises(ImportFailed, match="is no configuration of JoeyNMT, which has the sections 'data' and 'model'"):
        import_folder(folder)
    (folder / "config.yaml").write_text("a: [\n", "utf-8")
    with pytest.raises(ImportFailed, match="cannot be read as YAML"):
        import_folder(folder)


def test_a_pickle_that_runs_code_does_not(tmp_path: Path) -> None:
    """It is refused, and nothing has happened."""
    owned = tmp_path / "owned"

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (owned,))

    folder = write(tmp_path, plain())
    torch.save({"model_state": plain().state, "best_ckpt_score": Payload()}, folder / "best.ckpt")
    with pytest.raises(ImportFailed, match="could run code"):
        import_folder(folder)
    assert not owned.exists()
