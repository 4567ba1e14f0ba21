"""Weights around torch.nn.Transformer: against that module itself, and against a transliteration package."""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml
from torch import Tensor, nn

from dragoman.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from dragoman.model.errors import ImportFailed
from dragoman.model.importers import importer
from dragoman.model.search import beam, greedy
from dragoman.model.vocab import SpecialIds
from tests.fakes import original_tg2fa
from tests.fakes.packages import run_script, unpacked
from tests.fakes.references import assert_same, enliven, random_sources, tables_of

# nn.Transformer says which of its variants have no fast path.
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")

D, HEADS, SOURCE, TARGET = 32, 4, 30, 26
SPECIAL = ["<unk>", "<pad>", "<bos>", "<eos>"]
SOURCES = random_sources(16, 4, SOURCE, around=((2,), (3,)))
DATA = Path(__file__).parents[2] / "data"
IDS = SpecialIds(pad=1, unk=0, start=2, eos=3)
SHARED_SOURCES = random_sources(16, 4, TARGET, around=((2,), (3,)))


class Tutorial(nn.Module):
    """What a tutorial builds around nn.Transformer."""

    def __init__(
        self, *, positions: str = "sinusoidal", scale: bool = True, shared: str = "none", **options: Any
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(D) if scale else 1.0
        self.positions = positions
        self.core = nn.Transformer(D, HEADS, 2, 3, 64, dropout=0.0, **{"batch_first": True, **options})
        self.source = nn.Embedding(TARGET if shared == "all" else SOURCE, D)
        self.target = self.source if shared == "all" else nn.Embedding(TARGET, D)
        self.generator = nn.Linear(D, TARGET, bias=shared != "all")
        if shared in ("all", "output"):
            self.generator.weight = self.target.weight
        if positions == "learned":
            self.source_positions, self.target_positions = nn.Embedding(20, D), nn.Embedding(24, D)
        elif positions == "sinusoidal":
            angles = torch.arange(50)[:, None] * torch.exp(-torch.arange(0, D, 2) * math.log(10000) / D)
            table = torch.zeros(50, D)
            table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
            self.table: Tensor
            self.register_buffer("table", table[:, None])

    def _place(self, embedding: nn.Embedding, ids: list[int], name: str) -> Tensor:
        states = embedding(torch.tensor([ids])) * self.scale
        if self.positions == "learned":
            states = states + getattr(self, f"{name}_positions").weight[: len(ids)]
        elif self.positions == "sinusoidal":
            states = states + self.table[: len(ids), 0]
        return torch.as_tensor(states)

    def logits(self, source: list[int], target: list[int]) -> Tensor:
        """Return [T, V] of one source and one target."""
        read, written = self._place(self.source, source, "source"), self._place(self.target, target, "target")
        if not self.core.batch_first:
            read, written = read.transpose(0, 1), written.transpose(0, 1)
        states = self.core(read, written, tgt_mask=nn.Transformer.generate_square_subsequent_mask(len(target)))
        logits: Tensor = self.generator(states if self.core.batch_first else states.transpose(0, 1))
        return logits[0]


def make(**options: Any) -> Tutorial:
    torch.manual_seed(3)
    model = Tutorial(**options).eval()
    sources = SHARED_SOURCES if options.get("shared") == "all" else SOURCES
    layers, embeddings = (4.0, 0.5) if "shared" in options else (3.0, 1.0) if options.get("norm_first") else (1.0, 1.0)
    output = model.generator.weight
    gains = {"layers": layers, "embeddings": embeddings}
    enliven(model.parameters(), tables_of(model), model, output, sources, IDS, **gains)
    return model


def describe(**changes: Any) -> dict[str, Any]:
    """Return a description of the plain tutorial; changes are by "section.setting", None takes one away."""
    described: dict[str, Any] = {
        "state_dict": "model",
        "names": {
            "transformer": "core", "source_embedding": "source.weight", "target_embedding": "target.weight",
            "source_positions": "table", "target_positions": "table",
            "output": "generator.weight", "output_bias": "generator.bias",
        },
        "model": {"heads": HEADS, "positions": "sinusoidal", "scale_embedding": True, "max_source_tokens": 20,
                  "max_target_tokens": 20},
        "source": {"language": "xx", "symbols": {"first": SPECIAL, "characters": "abcdefghijklmnopqrstuvwxyz"},
                   "split": "characters", "unk": "<unk>", "pad": "<pad>", "start": 2, "eos": "<eos>",
                   "add_start": True},
        "target": {"language": "yy", "symbols": [*SPECIAL, *(f"w{i}" for i in range(TARGET - 4))], "split": "words",
                   "unk": "<unk>", "pad": "<pad>", "start": "<bos>", "eos": "<eos>"},
    }  # fmt: skip
    for path, value in changes.items():
        *sections, name = path.split("__")
        place = described
        for section in sections:
            place = place[section]
        if value is None:
            del place[name]
        else:
            place[name] = value
    return described


def load(folder: Path, state: Any, description: dict[str, Any]) -> Checkpoint:
    torch.save(state, folder / "model.pt")
    (folder / "model.yaml").write_text(yaml.safe_dump(description), "utf-8")
    return importer("torch").import_model(folder / "model.pt", argparse.Namespace(description=None))


def read(folder: Path, model: Tutorial, description: dict[str, Any]) -> Checkpoint:
    return load(folder, {"epoch": 3, "model": model.state_dict()}, description)


NO_TABLE: dict[str, Any] = {"names__source_positions": None, "names__target_positions": None}
LEARNED = {
    "model__positions": "learned", "names__source_positions": "source_positions.weight",
    "names__target_positions": "target_positions.weight", "model__scale_embedding": False,
}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "sequence first": ({"batch_first": False}, {}),
    "norm first": ({"norm_first": True}, {"model__norm_first": True}),
    "gelu": ({"activation": "gelu"}, {"model__activation": "gelu"}),
    "epsilon": ({"layer_norm_eps": 0.1}, {"model__norm_epsilon": 0.1}),
    "no bias": ({"bias": False}, {}),
    "learned": ({"positions": "learned", "scale": False}, LEARNED),
    "table as learned": ({}, {"model__positions": "learned"}),
    "no positions": ({"positions": "none"}, {**NO_TABLE, "model__positions": "none"}),
    "tied output": ({"shared": "output"}, {}),
    "tied output by name": (
        {"shared": "output"}, {"names__output": "target.weight", "ignore": ["generator.weight"]},
    ),
    "one vocabulary": (
        {"shared": "all"},
        {"names__output_bias": None, "source__symbols": [*SPECIAL, *(f"w{i}" for i in range(TARGET - 4))]},
    ),
    "two modules": (
        {}, {"names__transformer": None, "names__encoder": "core.encoder", "names__decoder": "core.decoder"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "changes"), CASES.values(), ids=CASES)
def test_logits_greedy_and_beam_are_those_of_the_module(
    options: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    """Every variant: logits within 1e-4, the same tokens from greedy search and from a beam of four."""
    model = make(**options)
    sources = SHARED_SOURCES if options.get("shared") == "all" else SOURCES

    assert_same(model, read(tmp_path, model, describe(**changes)), sources)


def test_modules_without_final_norms(tmp_path: Path) -> None:
    """nn.TransformerEncoder and nn.TransformerDecoder have none unless they are given one."""
    torch.manual_seed(3)
    model = Tutorial(norm_first=True, scale=False).eval()
    model.core.encoder.norm = model.core.decoder.norm = None
    enliven(model.parameters(), tables_of(model), model, model.generator.weight, SOURCES, IDS)
    described = describe(model__norm_first=True, model__scale_embedding=False)

    assert_same(model, read(tmp_path, model, described), SOURCES)


def test_every_place_of_the_state_dict(tmp_path: Path) -> None:
    """The file itself, a path in it, names with a prefix, safetensors."""
    model = make()
    first = read(tmp_path, model, describe()).model.state_dict()
    state = model.state_dict()
    deep = load(tmp_path, {"a": {"b": state}}, describe(state_dict="a.b"))
    bare = load(tmp_path, state, describe(state_dict=None))
    parallel = load(tmp_path, {f"module.{k}": v for k, v in state.items()}, describe(state_dict=None, prefix="module."))
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    safe = importer("torch").import_model(tmp_path / "model.safetensors", argparse.Namespace(description=None))

    for other in (deep, bare, safe):
        assert all(torch.equal(tensor, other.model.state_dict()[name]) for name, tensor in first.items())
    assert all(torch.equal(tensor, parallel.model.state_dict()[name]) for name, tensor in first.items())


def test_checkpoint_is_saved_and_loaded(tmp_path: Path) -> None:
    """Tokens, texts and languages survive."""
    checkpoint = read(tmp_path, make(), describe())
    saved = save_checkpoint(
        tmp_path / "run", checkpoint.model, checkpoint.tokenizer,
        languages=(checkpoint.source_language, checkpoint.target_language), step=0,
    )  # fmt: skip
    loaded = load_checkpoint(saved)

    assert loaded.tokenizer.encode("bad!") == checkpoint.tokenizer.encode("bad!") == [2, 5, 4, 7, 0, 3]
    assert loaded.tokenizer.decode([5, 4, 3]) == "w1 w0"
    assert (loaded.source_language, loaded.target_language) == ("xx", "yy")
    assert torch.equal(loaded.model.output_weight, checkpoint.model.output_weight)


def test_symbols_in_files(tmp_path: Path) -> None:
    """One in each line, where only line feeds end one, and JSON in both forms."""
    words = [*SPECIAL, " ", "\u2028", *(f"w{i}" for i in range(TARGET - 6))]
    (tmp_path / "lines.txt").write_text("\n".join(words) + "\n", "utf-8")
    (tmp_path / "list.json").write_text(json.dumps(words), "utf-8")
    (tmp_path / "object.json").write_text(
        json.dumps({word: i for i, word in reversed(list(enumerate(words)))}), "utf-8"
    )
    for name in ("lines.txt", "list.json", "object.json"):
        checkpoint = read(tmp_path, make(), describe(target__symbols={"file": name}, target__split="characters"))

        assert checkpoint.tokenizer.encode_target(" \u2028") == [4, 5, 3], name


def test_missing_and_surplus_tensors_are_named(tmp_path: Path) -> None:
    """All of them, with the shapes of what has no place."""
    state = make().state_dict()
    state["core.encoder.layers.0.norm3.weight"] = torch.ones(7)
    del state["core.decoder.layers.2.multihead_attn.in_proj_weight"], state["generator.bias"]
    with pytest.raises(ImportFailed) as failure:
        load(tmp_path, {"model": state}, describe())

    assert "multihead_attn.in_proj_weight, generator.bias" in str(failure.value)
    assert "core.encoder.layers.0.norm3.weight [7]" in str(failure.value)


def test_wrong_sizes_are_named(tmp_path: Path) -> None:
    """A tensor that does not fit the others, and vocabularies that do not fit their embeddings."""
    state = make().state_dict()
    state["core.encoder.layers.1.linear1.weight"] = torch.zeros(65, D)
    with pytest.raises(ImportFailed, match=r"layers.1.feed_forward.expand.weight is \[65, 32\]"):
        load(tmp_path, {"model": state}, describe())
    with pytest.raises(ImportFailed, match="the source has 4 symbols, its embedding 30"):
        read(tmp_path, make(), describe(source__symbols=SPECIAL))


def test_a_formula_that_the_stored_table_does_not_follow_is_refused(tmp_path: Path) -> None:
    """With the way out: take the table as it is."""
    with pytest.raises(ImportFailed, match=r"table is not what positions 'sinusoidal-half' say; .*'learned'"):
        read(tmp_path, make(), describe(model__positions="sinusoidal-half"))


def test_everything_that_is_wrong_in_a_description_is_said_at_once(tmp_path: Path) -> None:
    """Unknown, missing and wrong settings of every section."""
    wrong = describe(
        names__output=None, names__transformer=None, model__heads="four", model__depth=3, model__activation="tanh",
        source__eos="</s>", source__pad=77, target__start=None, target__symbols={"file": "none.txt"}, extra=1,
    )  # fmt: skip
    with pytest.raises(ImportFailed) as failure:
        read(tmp_path, make(), wrong)
    for part in (
        "description: extra is not a setting", "names: output is missing", "model: depth is not a setting",
        "model: heads is 'four'; it must be a whole number", "model: activation is 'tanh'; choose one of relu, gelu",
        "source: eos is '</s>'; it is none of the 30 symbols", "source: pad is 77", "none.txt: cannot be read",
    ):  # fmt: skip
        assert part in str(failure.value), part


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names__transformer": None}, "give `transformer`, or both `encoder` and `decoder`"),
        ({"names__encoder": "core.encoder"}, "give `transformer`, or both"),
        ({"target__start": None}, "target: start is missing"),
        ({"source__start": None}, "source: add_start is true, but start is missing"),
        ({"model__positions": "learned", **NO_TABLE}, "names: source_positions is missing; learned"),
        ({"target__add_eos": True}, "target: add_eos is of the source only"),
        ({"source": None}, "source is missing; it must be a table"),
        ({"model": [1]}, r"model is \[1\]; it must be a table"),
        ({"target__symbols": "abc"}, "symbols is 'abc'; it must be a list"),
        ({"state_dict": "weights"}, "the file has no 'weights', which state_dict names; it has epoch, model"),
        ({"state_dict": None}, "the file is no state dict, it holds epoch, model; say in"),
        ({"names__transformer": "net"}, "no tensor begins with net.encoder.layers; there are"),
        ({"model__heads": 5}, "d_model 32 is not a multiple of num_heads 5"),
        ({"source__split": "pieces"}, "the split is 'pieces', there is no SentencePiece model"),
        ({"target__codes": "bpe.codes"}, "bpe.codes: cannot be read"),
    ],
)
def test_wrong_descriptions_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """What is wrong, what is allowed."""
    with pytest.raises(ImportFailed, match=message):
        read(tmp_path, make(), describe(**changes))


def test_a_pickle_that_runs_code_does_not(tmp_path: Path) -> None:
    """It is refused with the way to convert it, and nothing has happened."""

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "owned",))

    with pytest.raises(ImportFailed, match="could run code"):
        load(tmp_path, {"model": make().state_dict(), "extra": Payload()}, describe())

    assert not (tmp_path / "owned").exists()


def test_missing_files_are_named(tmp_path: Path) -> None:
    """The weights, and the description beside them."""
    with pytest.raises(ImportFailed, match=r"gone.pt: there is no such file; give"):
        importer("torch").import_model(tmp_path / "gone.pt", argparse.Namespace(description=None))
    torch.save({}, tmp_path / "model.pt")
    with pytest.raises(ImportFailed, match=r"model.yaml: there is no such file; describe .* --description"):
        importer("torch").import_model(tmp_path / "model.pt", argparse.Namespace(description=None))


def test_transliterates_as_the_package_does(tmp_path: Path) -> None:
    """tg2fa-translit 1.0: the package's own texts, greedy tokens, and four hypotheses, of words and phrases."""
    package = unpacked("tg2fa-translit==1.0")
    texts = (DATA / "tajik.txt").read_text("utf-8").splitlines()
    (tmp_path / "texts.json").write_text(json.dumps(texts), "utf-8")
    script = Path(original_tg2fa.__file__)
    run_script(script, [str(tmp_path / "texts.json"), str(tmp_path / "result.json")], [package])
    expected = json.loads((tmp_path / "result.json").read_text("utf-8"))
    (tmp_path / "tg.json").write_text(json.dumps(expected["tg"]), "utf-8")
    (tmp_path / "fa.json").write_text(json.dumps(expected["fa"]), "utf-8")
    shutil.copy(DATA / "tg2fa.yaml", tmp_path)
    arguments = argparse.Namespace(description=tmp_path / "tg2fa.yaml")
    checkpoint = importer("torch").import_model(package / "tg2fa_translit" / "model_2.9.zip", arguments)
    tokenizer, special = checkpoint.tokenizer, checkpoint.tokenizer.special
    sources = [tokenizer.encode(text) for text in texts]
    limits = [len(source) + 9 for source in sources]

    assert len(texts) > 150
    assert sources == expected["sources"]
    found = greedy(checkpoint.model, sources, limits, special)
    assert found == expected["greedy"]
    assert [tokenizer.decode(ids) for ids in found] == expected["texts"]
    hypotheses = beam(checkpoint.model, sources, limits, special)
    assert [[hypothesis.tokens for hypothesis in row] for row in hypotheses] == expected["beam"]
    assert expected["texts"][-1] == "تا غم فردا نخوریم"
    assert (checkpoint.source_language, checkpoint.target_language) == ("tg", "fa")
