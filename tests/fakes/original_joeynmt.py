"""Run as a script beside JoeyNMT 2.3.0: makes random checkpoints and writes down what JoeyNMT does with them.

    original_joeynmt.py CASES OUT

CASES is a JSON object of case name and options: settings of the section "model" in "model", of both of its stacks in
"stacks", "shared" for one vocabulary, gains in "layers" and "embeddings". Each case becomes a folder of OUT with
best.ckpt, config.yaml, the vocabularies and record.pt.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from dragoman.model.vocab import SpecialIds
from tests.fakes.absent_modules import pretend
from tests.fakes.references import enliven, random_sources, record, tables_of

SPECIAL = SpecialIds(pad=1, unk=0, start=2, eos=3)
SIZES = {"src": 36, "trg": 40}
OWN_LIMIT = 40
_UNUSED = ("importlib_metadata", "pkg_resources", "datasets", "pandas", "sacremoses", "subword_nmt")


class Original:
    """A JoeyNMT model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def encode(self, source: list[int]) -> tuple[Tensor, Tensor]:
        """Return states and mask of one source."""
        mask = torch.ones(1, 1, len(source), dtype=torch.bool)
        states, _, _, _ = self.model(
            return_type="encode", src=torch.tensor([source]), src_length=torch.tensor([len(source)]), src_mask=mask
        )
        return states, mask

    def logits(self, source: list[int], target: list[int]) -> Tensor:
        """Return [T, V] of one source and one target."""
        states, mask = self.encode(source)
        logits, _, _, _ = self.model(
            return_type="decode", trg_input=torch.tensor([target]), encoder_output=states, encoder_hidden=None,
            src_mask=mask, unroll_steps=None, decoder_hidden=None, trg_mask=torch.ones(1, 1, 1, dtype=torch.bool),
        )  # fmt: skip
        return torch.as_tensor(logits[0])


def configuration(case: dict[str, Any]) -> dict[str, Any]:
    stack = {
        "type": "transformer", "num_heads": 4, "hidden_size": 32, "ff_size": 48, "dropout": 0.0, "layer_norm": "pre",
        "embeddings": {"embedding_dim": 32, "scale": True, "dropout": 0.0}, **case.get("stacks", {}),
    }  # fmt: skip
    side = {"level": "word", "lowercase": True, "tokenizer_type": "none"}
    return {
        "name": "case",
        "joeynmt_version": "2.3.0",
        "data": {"src": {"lang": "xx", **side}, "trg": {"lang": "yy", **side}},
        "model": {
            "initializer": "xavier_uniform", "embed_initializer": "xavier_uniform", "bias_initializer": "zeros",
            "encoder": {**stack, "num_layers": 2}, "decoder": {**stack, "num_layers": 3}, **case.get("model", {}),
        },
    }  # fmt: skip


def make_case(name: str, case: dict[str, Any], out: Path) -> None:
    folder = out / name
    folder.mkdir(parents=True)
    settings = configuration(case)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    vocabulary: Any = importlib.import_module("joeynmt.vocabulary").Vocabulary
    check: Any = importlib.import_module("joeynmt.config")._check_special_symbols
    special = SimpleNamespace(**check({}))
    shared = case.get("shared", False)
    vocabularies = {}
    for side, size in SIZES.items():
        letter, count = ("w", SIZES["trg"]) if shared else (side[0], size)
        vocabularies[side] = vocabulary([f"{letter}{i}" for i in range(count - 4)], special)
        vocabularies[side].to_file(folder / f"{side}_vocab.txt")
    torch.manual_seed(case.get("seed", 5))
    build: Any = importlib.import_module("joeynmt.model").build_model
    model = build(settings["model"], src_vocab=vocabularies["src"], trg_vocab=vocabularies["trg"]).eval()
    sources = random_sources(24, 4, min(SIZES.values()), around=((), (3,)))
    original = Original(model)
    output = model.decoder.output_layer.weight
    gains = {"layers": case.get("layers", 2.0), "embeddings": case.get("embeddings", 3.0), "end": 3.0}
    with torch.no_grad():  # the padding's is zero
        for table in tables_of(model):
            nn.init.normal_(table[1], std=0.1)
    enliven(model.parameters(), tables_of(model), original, output, sources, SPECIAL, **gains)
    torch.save(
        {"model_state": model.state_dict(), "optimizer_state": {}, "stats_state": {"steps": 1}}, folder / "1.ckpt"
    )
    (folder / "best.ckpt").symlink_to("1.ckpt")
    kept = dataclasses.asdict(record(original, SIZES["trg"], sources, SPECIAL))
    torch.save({**kept, "own": own_searches(original, sources)}, folder / "record.pt")


@torch.inference_mode()
def own_searches(original: Original, sources: list[list[int]]) -> dict[str, list[list[int]]]:
    """Return what JoeyNMT's own searches find, unknown symbols passed over."""
    search: Any = importlib.import_module("joeynmt.search")
    found: dict[str, list[list[int]]] = {"greedy": [], "beam": []}
    options = {"generate_unk": False, "min_output_length": 0}
    for source in sources:
        states, mask = original.encode(source)
        ids, _, _ = search.greedy(mask, OWN_LIMIT, original.model, states, None, **options)
        found["greedy"].append(ids[0].tolist())
        ids, _, _ = search.beam_search(original.model, 4, states, None, mask, OWN_LIMIT, alpha=-1, n_best=1, **options)
        found["beam"].append(ids[0].tolist())
    return found


def main(cases: Path, out: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pretend(_UNUSED)
    for name, case in json.loads(cases.read_text("utf-8")).items():
        make_case(name, case, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
