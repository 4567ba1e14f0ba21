"""Run as a script beside OpenNMT-py 2.3.0 or 3.5.1: makes random checkpoints and writes down what it does with them.

    original_opennmt.py VERSION CASES OUT

CASES is a JSON object of case name and options: of OpenNMT-py in "options", "format" of the weights ("pytorch" or
"safetensors"), gains in "layers" and "embeddings". Each case becomes a folder of OUT with model_step_1.pt and
record.pt.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import warnings
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.model.vocab import SpecialIds
from tests.fakes.absent_modules import pretend
from tests.fakes.references import enliven, random_sources, record, tables_of

SPECIAL = SpecialIds(pad=1, unk=0, start=2, eos=3)
SIZES = {"src": 34, "tgt": 40}
OWN_LIMIT = 40
_UNUSED = ("spacy", "fasttext", "rapidfuzz", "ahocorasick", "requests", "flask", "waitress", "ctranslate2")


class Original:
    """A model of version 2, where the batch is the second dimension, or 3."""

    def __init__(self, model: Any, version: int) -> None:
        self.model = model
        self.version = version

    def logits(self, source: list[int], target: list[int]) -> Tensor:
        """Return [T, V] of one source and one target."""
        ids, lengths = torch.tensor(source)[None, :, None], torch.tensor([len(source)])
        written = torch.tensor(target)[None, :, None]
        if self.version == 2:
            state, memory, lengths = self.model.encoder(ids.transpose(0, 1), lengths)
            self.model.decoder.init_state(ids.transpose(0, 1), memory, state)
            states, _ = self.model.decoder(written.transpose(0, 1), memory, memory_lengths=lengths)
            return torch.as_tensor(self.model.generator[0](states[:, 0]))
        memory, state, lengths = self.model.encoder(ids, lengths)
        self.model.decoder.init_state(ids, memory, state)
        states, _ = self.model.decoder(written, memory, src_len=lengths)
        return torch.as_tensor(self.model.generator(states[0]))


def symbols(side: str, shared: bool) -> list[str]:
    size, letter = (SIZES["tgt"], "w") if shared else (SIZES[side], side[0])
    return [f"{letter}{i:02d}" for i in range(size - 4)]


def make_vocabularies(version: int, shared: bool) -> dict[str, Any]:
    if version == 3:
        build: Any = importlib.import_module("pyonmttok").build_vocab_from_tokens
        special = ["<unk>", "<blank>", "<s>", "</s>"]
        made = {side: build([*special, *symbols(side, shared)]) for side in SIZES}
        if shared:
            made["src"] = made["tgt"]
        return {**made, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    inputter: Any = importlib.import_module("onmt.inputters.inputter")
    fields: dict[str, Any] = inputter.get_fields("text", None, None)
    for side in SIZES:
        words = symbols(side, shared) + (["<s>", "</s>"] if side == "src" else [])  # a source has no start and no end
        counts = Counter({word: 1000 - i for i, word in enumerate(words)})
        inputter._build_field_vocab(fields[side].base_field, counts)
    if shared:
        fields["src"].base_field.vocab = fields["tgt"].base_field.vocab
    return fields


def make_options(version: int, changes: dict[str, Any]) -> Namespace:
    parse: Any = importlib.import_module("onmt.utils.parse").ArgumentParser
    options: Namespace = parse.defaults(importlib.import_module("onmt.opts").model_opts)
    width = "rnn_size" if version == 2 else "hidden_size"
    values = {
        "encoder_type": "transformer", "decoder_type": "transformer", "position_encoding": True, "heads": 4,
        "word_vec_size": 32, "transformer_ff": 48, "enc_layers": 2, "dec_layers": 3, "dropout": [0.0],
        "attention_dropout": [0.0], "max_relative_positions": 0, "self_attn_type": "scaled-dot", width: 32,
        "freeze_word_vecs_enc": False, "freeze_word_vecs_dec": False, "param_init": 0.0, "param_init_glorot": True,
        "parallel_mode": "data_parallel", "optim": "adam", "world_size": 1, "pre_word_vecs_enc": None,
        "pre_word_vecs_dec": None,
        "update_vocab": False, "lora_layers": [], "quant_layers": [], "lora_embedding": False, "n_src_feats": 0,
        "freeze_encoder": False, "freeze_decoder": False, "add_ffnbias": True, "add_qkvbias": True,
    }  # fmt: skip
    options.__dict__.update({**values, **changes})
    parse.update_model_opts(options)
    parse.validate_model_opts(options)
    return options


def make_case(version: int, name: str, case: dict[str, Any], out: Path) -> None:
    folder = out / name
    folder.mkdir(parents=True)
    options = make_options(version, case.get("options", {}))
    vocabularies = make_vocabularies(version, bool(options.share_embeddings))
    build: Any = importlib.import_module("onmt.model_builder").build_base_model
    torch.manual_seed(case.get("seed", 5))
    model = (build(options, vocabularies, False) if version == 2 else build(options, vocabularies)).eval()
    for parameter in model.parameters():  # some are left as memory was found
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    for part in model.modules():
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
    generator = model.generator[0] if version == 2 else model.generator
    low, high = 4, min(SIZES.values()) - 2
    sources = random_sources(24, low, high, around=((), ()))
    original = Original(model, version)
    gains = {"layers": case.get("layers", 2.0), "embeddings": case.get("embeddings", 3.0), "end": 3.0}
    enliven(model.parameters(), tables_of(model), original, generator.weight, sources, SPECIAL, **gains)
    with torch.no_grad():  # a trained model does not write them, so OpenNMT-py does not keep its search from it
        generator.bias[[SPECIAL.pad, SPECIAL.start]] = -30.0
    save(version, model, vocabularies, options, folder, case.get("format", "pytorch"))
    kept = dataclasses.asdict(record(original, SIZES["tgt"], sources, SPECIAL))
    own = own_searches(model, vocabularies, sources) if version == 3 else None
    torch.save({**kept, "own": own}, folder / "record.pt")


def save(version: int, model: Any, vocabularies: Any, options: Namespace, folder: Path, form: str) -> None:
    """Save with the library's own code."""
    saver: Any = importlib.import_module("onmt.models.model_saver").ModelSaver
    optimizer = Namespace(state_dict=dict)
    if version == 2:
        saver(str(folder / "model"), model, options, vocabularies, optimizer)._save(1, model)
    else:
        kept = saver(str(folder / "model"), model, options, vocabularies, optimizer, -1, form, -1)
        (kept._save if form == "pytorch" else kept._st_save)(1, model)


@torch.inference_mode()
def own_searches(model: Any, vocabularies: Any, sources: list[list[int]]) -> dict[str, list[list[int]]]:
    """Return what OpenNMT-py's own searches find, unknown symbols passed over."""
    translation: Any = importlib.import_module("onmt.translate")
    found: dict[str, list[list[int]]] = {}
    for name, beams in (("greedy", 1), ("beam", 4)):
        # No penalty: a hypothesis scores the sum of its log-probabilities.
        scorer = translation.GNMTGlobalScorer(0.0, 0.0, "none", "none")
        translator = translation.Translator(
            model, vocabularies, beam_size=beams, max_length=OWN_LIMIT, max_length_ratio=0, ban_unk_token=True,
            random_sampling_topk=int(beams == 1), global_scorer=scorer, dump_beam="", report_score=False,
        )  # fmt: skip
        found[name] = []
        for source in sources:
            batch = {"src": torch.tensor(source)[None, :, None], "srclen": torch.tensor([len(source)])}
            found[name].append(translator.translate_batch(batch, False)["predictions"][0][0].tolist())
    return found


def main(version: int, cases: Path, out: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pretend(_UNUSED)
    for name, case in json.loads(cases.read_text("utf-8")).items():
        make_case(version, name, case, out)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
