"""Run as a script beside fairseq 0.12.2: makes random checkpoints and writes down what fairseq does with them.

    original_fairseq.py CASES OUT

CASES is a JSON object of case name and options: fairseq's own command line in "arguments", "format" of the saved
options ("args" or "cfg"), the gain of matrices in "layers" and of embeddings in "embeddings", and options of a
multilingual model in "languages". Each case becomes a folder of OUT with checkpoint_best.pt, dictionaries and
record.pt.
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
from torch import Tensor

from dragoman.model.vocab import SpecialIds
from tests.fakes.references import enliven, random_sources, record, tables_of

SPECIAL = SpecialIds(pad=1, unk=3, start=2, eos=2)
VOCAB = {"source": 36, "target": 40}
OWN_LIMIT = 40


def accept_mutable_defaults() -> None:
    """Let fairseq's configuration classes, which Python refuses since 3.11, be dataclasses."""
    original: Any = dataclasses.dataclass

    def dataclass(cls: Any = None, /, **options: Any) -> Any:
        def wrap(made: Any) -> Any:
            old = made.__module__.startswith(("fairseq", "hydra")) and "__hash__" not in made.__dict__
            return original(made, **({"unsafe_hash": True} if old else {}), **options)

        return wrap if cls is None else wrap(cls)

    dataclasses.dataclass = dataclass


class Original:
    """A fairseq model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def logits(self, source: list[int], target: list[int]) -> Tensor:
        """Return [T, V] of one source and one target."""
        ids, lengths = torch.tensor([source]), torch.tensor([len(source)])
        logits: Tensor = self.model(ids, lengths, torch.tensor([target]))[0]
        return logits[0]


def make_case(name: str, case: dict[str, Any], out: Path) -> None:
    transformer: Any = importlib.import_module("fairseq.models.transformer")
    options: Any = importlib.import_module("fairseq.options")
    words: Any = importlib.import_module("fairseq.data").Dictionary
    folder = out / name
    folder.mkdir(parents=True)
    arguments = [
        str(folder), "--task", "translation", "--arch", "transformer", "--source-lang", "xx", "--target-lang", "yy",
        "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "48", "--encoder-attention-heads", "4",
        "--decoder-attention-heads", "4",
        "--encoder-layers", "2", "--decoder-layers", "3", "--max-source-positions", "64",
        "--max-target-positions", "64", *case["arguments"],
    ]  # fmt: skip
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    dictionaries = {}
    for side, language in (("source", "xx"), ("target", "yy")):
        dictionary = words()
        shared = args.share_all_embeddings
        for i in range(VOCAB["target" if shared else side] - len(dictionary)):
            dictionary.add_symbol(f"{'w' if shared else side[0]}{i}", n=100 - i)
        dictionary.save(str(folder / f"dict.{language}.txt"))
        if "languages" in case:  # the file does not have their symbols
            multilingual: Any = importlib.import_module("fairseq.data.multilingual.multilingual_utils")
            multilingual.augment_dictionary(dictionary, case["languages"]["langs"], "multilingual")
        dictionaries[side] = dictionary
    torch.manual_seed(case.get("seed", 5))
    task = SimpleNamespace(source_dictionary=dictionaries["source"], target_dictionary=dictionaries["target"])
    model = transformer.TransformerModel.build_model(args, task).eval()
    sources = random_sources(24, 4, min(VOCAB.values()), around=((), (2,)))
    output = model.decoder.output_projection.weight
    gains = {"layers": case.get("layers", 1.0), "embeddings": case.get("embeddings", 1.0), "end": 3.0}
    enliven(model.parameters(), tables_of(model), Original(model), output, sources, SPECIAL, **gains)
    vars(args).update(case.get("languages", {}))
    saved: dict[str, Any] = {"args": None, "cfg": None, "model": model.state_dict(), "extra_state": {"epoch": 1}}
    if case.get("format") == "cfg":
        convert: Any = importlib.import_module("fairseq.dataclass.utils").convert_namespace_to_omegaconf
        omega: Any = importlib.import_module("omegaconf").OmegaConf
        saved["cfg"] = omega.to_container(convert(args), resolve=True, enum_to_str=True)
    else:
        saved["args"] = args
    torch.save(saved, folder / "checkpoint_best.pt")
    kept = dataclasses.asdict(record(Original(model), len(output), sources, SPECIAL))
    own = own_searches(model, dictionaries["target"], sources)
    if "languages" in case:
        marks = [dictionaries[side].index(symbol) for side, symbol in (("source", "__xx__"), ("target", "__yy__"))]
        framed = [[marks[0], *source] for source in sources]
        own["forced"] = own_searches(model, dictionaries["target"], framed, [marks[1]])["greedy"]
    torch.save({**kept, "own": own}, folder / "record.pt")


@torch.inference_mode()
def own_searches(
    model: Any, target: Any, sources: list[list[int]], first: list[int] | None = None
) -> dict[str, list[list[list[int]]]]:
    """Return what fairseq's own generator finds with beams of 1 and 4, unknown symbols passed over.

    Args:
        model: A fairseq model.
        target: Its dictionary.
        sources: As the model reads them.
        first: What every target begins with.
    """
    prefix = None if first is None else torch.tensor([first])
    generator: Any = importlib.import_module("fairseq.sequence_generator").SequenceGenerator
    found: dict[str, list[list[list[int]]]] = {}
    for name, beams in (("greedy", 1), ("beam", 4)):
        search = generator(
            [model], target, beam_size=beams, max_len_b=OWN_LIMIT - 1, min_len=0, unk_penalty=float("inf")
        )
        found[name] = []
        for source in sources:
            sample = {"net_input": {"src_tokens": torch.tensor([source]), "src_lengths": torch.tensor([len(source)])}}
            hypotheses = search.generate([model], sample, prefix_tokens=prefix)[0]
            found[name].append([hypothesis["tokens"].tolist() for hypothesis in hypotheses])
    return found


def main(cases: Path, out: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    accept_mutable_defaults()
    for name, case in json.loads(cases.read_text("utf-8")).items():
        make_case(name, case, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
