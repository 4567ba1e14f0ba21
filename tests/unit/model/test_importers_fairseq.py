"""fairseq checkpoints: against fairseq itself where it can be fetched, and against its layout written out."""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from torch.nn import functional

from dragoman.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from dragoman.model.errors import ImportFailed
from dragoman.model.importers import importer
from dragoman.model.search import beam, greedy
from tests.fakes import original_fairseq
from tests.fakes.fairseq_folders import IDS, SOURCES, options_of, plain, write
from tests.fakes.packages import installed, run_script, unpacked
from tests.fakes.references import Record, assert_recorded, assert_same


def import_folder(path: Path, **options: Any) -> Checkpoint:
    given = dict.fromkeys(("source_dict", "target_dict", "codes", "sentencepiece", "max_tokens"))
    return importer("fairseq").import_model(path, argparse.Namespace(**{**given, **options}))


# fairseq itself

PRE = ["--encoder-normalize-before", "--decoder-normalize-before"]
LEARNED = ["--encoder-learned-pos", "--decoder-learned-pos"]
PRE_GAINS = {"layers": 2.0, "embeddings": 3.0}
CASES: dict[str, dict[str, Any]] = {
    "post": {"arguments": []},
    "pre": {"arguments": PRE, **PRE_GAINS},
    "saved as cfg": {"arguments": PRE, **PRE_GAINS, "format": "cfg"},
    "learned": {"arguments": [*LEARNED, "--no-scale-embedding"], "embeddings": 3.0},
    "bart-like": {
        "arguments": [*LEARNED, "--layernorm-embedding", "--share-decoder-input-output-embed",
                      "--activation-fn", "gelu"],
        "layers": 2.0,
    },
    "all shared": {"arguments": [*PRE, "--share-all-embeddings"], "layers": 4.0},
    "gelu-tanh": {"arguments": [*PRE, "--activation-fn", "gelu_accurate", "--decoder-layers", "1"], **PRE_GAINS},
    "no positions": {"arguments": ["--no-token-positional-embeddings"]},
    "multilingual": {
        "arguments": [*PRE, "--share-all-embeddings"], "layers": 4.0, "seed": 7,
        "languages": {
            "task": "translation_multi_simple_epoch", "langs": ["yy", "xx"], "lang_pairs": ["xx-yy", "yy-xx"],
            "encoder_langtok": "src", "decoder_langtok": True, "lang_tok_style": "multilingual",
            "langtoks_specs": ["main"],
        },
    },
}  # fmt: skip


@functools.cache
def original_cases(folder: Path) -> Path:
    """Return a folder with a checkpoint and a record of each case, made by fairseq."""
    site = installed("omegaconf==2.3.0", "hydra-core==1.3.2", "antlr4-python3-runtime==4.9.3", "bitarray", "regex")
    (folder / "cases.json").write_text(json.dumps(CASES), "utf-8")
    arguments = [str(folder / "cases.json"), str(folder / "made")]
    run_script(Path(original_fairseq.__file__), arguments, [unpacked("fairseq==0.12.2"), site])
    return folder / "made"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return original_cases(tmp_path_factory.mktemp("fairseq"))


@pytest.mark.parametrize("case", CASES)
def test_logits_greedy_and_beam_are_those_of_fairseq(case: str, originals: Path) -> None:
    """Logits, greedy tokens and four hypotheses; and what fairseq's own generator chooses with beams of 1 and 4."""
    recorded = torch.load(originals / case / "record.pt")
    own = recorded.pop("own")
    checkpoint = import_folder(originals / case)
    special, sources = checkpoint.tokenizer.special, recorded["sources"]

    assert_recorded(Record(**recorded), checkpoint)
    limit = original_fairseq.OWN_LIMIT
    limits = [limit] * len(sources)
    # At its limit fairseq puts an EOS where we put nothing.
    found = greedy(checkpoint.model, sources, limits, special)
    assert [ids[: limit - 1] for ids in found] == [row[0][: limit - 1] for row in own["greedy"]]
    ended = [row for row, ids in enumerate(own["beam"]) if max(map(len, ids)) < limit]
    assert len(ended) > len(sources) // 8
    chosen = beam(checkpoint.model, [sources[row] for row in ended], [limit] * len(ended), special, early_stopping=True)
    assert [row[0].tokens for row in chosen] == [own["beam"][row][0] for row in ended]
    assert (checkpoint.source_language, checkpoint.target_language) == ("xx", "yy")


def test_language_tokens_are_those_of_fairseq(originals: Path) -> None:
    """A multilingual model: its generator, told to begin with the target's token, gives what we give."""
    recorded = torch.load(originals / "multilingual" / "record.pt")
    checkpoint = import_folder(originals / "multilingual")
    languages = checkpoint.languages
    assert languages is not None
    first = languages.first_target("yy")
    sources = [languages.frame(source, "xx", "yy") for source in recorded["sources"]]
    limit = original_fairseq.OWN_LIMIT - 1
    found = greedy(checkpoint.model, sources, [limit] * len(sources), checkpoint.tokenizer.special, first)

    assert [[*first, *ids][:limit] for ids in found] == [row[0][:limit] for row in recorded["own"]["forced"]]
    assert found != greedy(checkpoint.model, sources, [limit] * len(sources), checkpoint.tokenizer.special)


# Its layout, written out


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"pre": True}, {}),
        ({"pre": True, "tied": "output", "activation": functional.gelu}, {"activation_fn": "gelu"}),
        ({"embedding_norm": True, "scale": 1.0}, {"layernorm_embedding": True, "no_scale_embedding": True}),
    ],
    ids=["post", "pre", "tied", "embedding norm"],
)
def test_logits_greedy_and_beam_are_those_of_the_layout(
    settings: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    """Logits within 1e-4, the same tokens from greedy search and from a beam of four."""
    model = plain(**settings)
    checkpoint = import_folder(write(tmp_path, model, **options))

    assert_same(model, checkpoint, SOURCES)
    assert (checkpoint.source_language, checkpoint.target_language) == ("de", "en")
    assert (checkpoint.model.config.max_source_tokens, checkpoint.model.config.max_target_tokens) == (30, 20)


def test_older_versions(tmp_path: Path) -> None:
    """Fused projections, numbered norms, the output under another name, stored sinusoids, no final norms."""
    model = plain()
    state = {}
    numbers = {"self_attn_layer_norm": "0", "encoder_attn_layer_norm": "1", "final_layer_norm": "2"}
    for name, tensor in model.state.items():
        parts = name.split(".")
        if parts[-2] in numbers:
            number = "1" if parts[0] == "encoder" and parts[-2] == "final_layer_norm" else numbers[parts[-2]]
            state[".".join((*parts[:3], "layer_norms", number, parts[-1]))] = tensor
        elif parts[-2] == "q_proj":
            three = [model.state[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            state[".".join((*parts[:-2], f"in_proj_{parts[-1]}"))] = torch.cat(three)
        elif parts[-2] not in ("k_proj", "v_proj", "output_projection"):
            state[name] = tensor
    state["decoder.embed_out"] = model.output
    state["encoder.embed_positions.weights"] = torch.zeros(40, 32)
    state["encoder.version"], state["decoder.version"] = torch.tensor([1.0]), torch.tensor([2.0])

    assert_same(model, import_folder(write(tmp_path, model, state)), SOURCES)


def test_checkpoint_is_saved_and_loaded(tmp_path: Path) -> None:
    """Tokens and texts survive; a word that spells a special symbol is unknown."""
    model = plain()
    checkpoint = import_folder(write(tmp_path, model))
    loaded = load_checkpoint(
        save_checkpoint(tmp_path / "run", checkpoint.model, checkpoint.tokenizer, languages=("de", "en"), step=0)
    )

    assert loaded.tokenizer.encode("s0 s3 </s> t1") == [4, 7, 3, 3, 2]
    assert loaded.tokenizer.decode([4, 0, 7, 2]) == "t0 t3"
    assert greedy(loaded.model, SOURCES[:3], [9] * 3, IDS) == greedy(checkpoint.model, SOURCES[:3], [9] * 3, IDS)


def test_codes_and_joiners(tmp_path: Path) -> None:
    """`bpecodes` beside the model cut words; parts that end with @@ are joined."""
    folder = write(tmp_path, plain())
    symbols = ["lo@@", "w", "low", "e@@", "r", *(f"x{i}" for i in range(31))]
    for name, size in (("deu", 32), ("en_XX", 36)):
        (folder / f"dict.{name}.txt").write_text("".join(f"{s} 1\n" for s in symbols[:size]), "utf-8")
    (folder / "bpecodes").write_text("#version: 0.2\nl o\ne r</w>\nlo w</w>\n", "utf-8")
    tokenizer = import_folder(folder).tokenizer

    assert tokenizer.encode("low lo") == [6, 3, 3, 2]
    assert tokenizer.decode([4, 5, 6, 7, 8, 2]) == "low low er"
    (folder / "bpecodes").unlink()
    assert import_folder(folder).tokenizer.decode([4, 5, 6]) == "low low"
    (folder / "code").write_text("a\n", "utf-8")
    with pytest.raises(ImportFailed, match="line 1: 'a' is not a pair of parts"):
        import_folder(folder)


def test_sentencepiece(tmp_path: Path) -> None:
    """`sentencepiece.bpe.model` beside the model gives pieces that the dictionary numbers."""
    folder = write(tmp_path, plain())
    (tmp_path / "text").write_text("low lower lowest wide wider widest\n" * 20, "utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(folder / "sentencepiece.bpe"), vocab_size=20, model_type="bpe",
        minloglevel=2,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(str(folder / "sentencepiece.bpe.model"))
    pieces = [model.id_to_piece(i) for i in range(3, 20)]
    for name, size in (("deu", 32), ("en_XX", 36)):
        words = [*pieces, *(f"madeupword{i:04d}" for i in range(size - len(pieces)))]
        (folder / f"dict.{name}.txt").write_text("".join(f"{word} 1\n" for word in words), "utf-8")
    tokenizer = import_folder(folder).tokenizer

    ids = tokenizer.encode("lower widest")
    assert ids[:-1] == [i + 1 for i in model.encode("lower widest")]
    assert ids[-1] == 2
    assert tokenizer.decode(ids) == "lower widest"


def test_language_tokens(tmp_path: Path) -> None:
    """A multilingual model: tokens behind the dictionary, in front of the source and first in the target."""
    model = plain(source=40, target=40, tied="all")
    options: dict[str, Any] = {
        "task": "translation_multi_simple_epoch", "lang_pairs": "deu-en_XX,en_XX-deu,fr-en_XX", "langs": None,
        "encoder_langtok": "src", "decoder_langtok": True, "source_lang": None, "target_lang": None,
    }  # fmt: skip
    folder = write(tmp_path, model, **options)
    for name in ("deu", "en_XX"):
        (folder / f"dict.{name}.txt").write_text("".join(f"t{i} 1\n" for i in range(33)), "utf-8")
    checkpoint = import_folder(folder)
    languages = checkpoint.languages

    assert languages is not None
    assert sorted(languages.sources) == sorted(languages.targets) == ["de", "en", "fr"]
    assert languages.frame([4, 2], "fr", "en") == [39, 4, 2]
    assert languages.first_target("en") == (38,)
    assert checkpoint.tokenizer.decode([38, 4, 2]) == "t0"
    assert checkpoint.tokenizer.encode("__fr__ t0") == [3, 4, 2]
    changed = options_of(model, **{**options, "encoder_langtok": "tgt", "decoder_langtok": False})
    torch.save(
        {"args": changed, "model": torch.load(folder / "model.pt", weights_only=False)["model"]}, folder / "model.pt"
    )
    to_source = import_folder(folder)
    assert to_source.languages is not None
    assert to_source.languages.frame([4, 2], "fr", "en") == [38, 4, 2]
    assert to_source.languages.first_target("en") == ()


def test_options_that_we_cannot_follow_are_named_all_at_once(tmp_path: Path) -> None:
    """By name and value, with what is supported."""
    wrong: dict[str, Any] = {
        "decoder_attention_heads": 8, "decoder_normalize_before": True, "activation_fn": "tanh",
        "cross_self_attention": True, "adaptive_softmax_cutoff": [10], "task": "language_modeling",
        "decoder_output_dim": 16, "encoder_learned_pos": True, "encoder_layers": "two", "tokenizer": "moses",
        "bpe": "gpt2",
    }  # fmt: skip
    with pytest.raises(ImportFailed) as failure:
        import_folder(write(tmp_path, plain(), **wrong))
    for part in (
        "encoder_attention_heads is 4 and decoder_attention_heads is 8", "decoder_normalize_before differ",
        "activation_fn is 'tanh'; supported are relu, gelu", "cross_self_attention is True; supported is False",
        "adaptive_softmax_cutoff is [10]; supported is that it is not given", "task is 'language_modeling'",
        "decoder_output_dim is 16; supported is 32", "decoder_learned_pos differ", "encoder_layers is 'two'",
        "tokenizer is 'moses'; supported is 'space'", "bpe is 'gpt2'; supported is 'subword_nmt' or 'fastbpe'",
    ):  # fmt: skip
        assert part in str(failure.value), part


def test_missing_and_surplus_tensors_are_named(tmp_path: Path) -> None:
    """All of them, and what has another size than the options say."""
    state = dict(plain().state)
    state["encoder.layers.0.ffn_layernorm.weight"] = torch.ones(48)
    del state["decoder.layers.2.encoder_attn.k_proj.bias"], state["encoder.layers.1.fc1.weight"]
    with pytest.raises(ImportFailed) as failure:
        import_folder(write(tmp_path, plain(), state))
    assert "encoder.layers.1.fc1.weight, decoder.layers.2.encoder_attn.k_proj.bias" in str(failure.value)
    assert "encoder.layers.0.ffn_layernorm.weight [48]" in str(failure.value)
    with pytest.raises(ImportFailed, match=r"expand.weight is \[48, 32\], the configuration says \[64, 32\]"):
        import_folder(write(tmp_path, plain(), encoder_ffn_embed_dim=64, decoder_ffn_embed_dim=64))
    decoder = {name: tensor for name, tensor in plain().state.items() if name.startswith("decoder")}
    torch.save({"args": options_of(plain()), "model": decoder}, tmp_path / "model.pt")
    with pytest.raises(ImportFailed, match="has no encoder; supported are"):
        import_folder(tmp_path)


def test_dictionaries_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Missing, malformed, of another size."""
    folder = write(tmp_path, plain())
    path = folder / "dict.deu.txt"
    for content, message in (
        ("a 1\nb\n", "line 2: 'b' is not a symbol and its count"),
        ("a 1\na 2\n", "line 2: 'a' is there already"),
        ("a 1\n", "the source dictionary has 5 symbols, the embedding 36"),
    ):
        path.write_text(content, "utf-8")
        with pytest.raises(ImportFailed, match=message):
            import_folder(folder)
    path.write_text("a 1\na 2 #fairseq:overwrite\n" + "".join(f"s{i} 1\n" for i in range(30)), "utf-8")
    assert import_folder(folder).tokenizer.encode("a") == [5, 2]
    path.rename(folder / "dict.other.txt")
    with pytest.raises(
        ImportFailed, match=r"has dict.en_XX.txt, dict.other.txt; dict.deu.txt is needed: .*--source-dict"
    ):
        import_folder(folder)
    assert import_folder(folder, source_dict=folder / "dict.other.txt").tokenizer.encode("a") == [5, 2]


def test_a_pickle_that_runs_code_does_not(tmp_path: Path) -> None:
    """Objects of fairseq or of anybody else are refused by name; numpy's numbers and Namespaces are data."""
    owned = tmp_path / "owned"

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (owned,))

    model = plain()
    folder = write(tmp_path, model)
    state = torch.load(folder / "model.pt", weights_only=False)
    torch.save({**state, "extra_state": {"best": Payload()}}, folder / "model.pt")
    with pytest.raises(ImportFailed, match=r"could run code .*torch.save\(model.state_dict"):
        import_folder(folder)
    assert not owned.exists()
    torch.save({**state, "extra_state": {"best": np.float64(1.5)}}, folder / "model.pt")
    assert import_folder(folder).model.config.d_model == 32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weights": {}}, "has no tensors under 'model'; it is no checkpoint"),
        ({"model": {}, "args": None}, "has no options, neither 'args' nor 'cfg'; it has model, args"),
        ([1, 2], "has no tensors under 'model'"),
    ],
)
def test_other_files_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    """With what was found in them."""
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(ImportFailed, match=message):
        import_folder(tmp_path)


def test_paths_that_mean_no_file_are_refused(tmp_path: Path) -> None:
    """Nothing there, nothing of that kind, too many."""
    with pytest.raises(ImportFailed, match="there is no such file"):
        import_folder(tmp_path / "gone")
    with pytest.raises(ImportFailed, match=r"has no model; looked for checkpoint_best.pt and model.pt"):
        import_folder(tmp_path)
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).touch()
    with pytest.raises(ImportFailed, match=r"has 2 models, name one: a.pt, b.pt"):
        import_folder(tmp_path)
