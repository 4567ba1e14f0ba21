"""Models that every side of a comparison gets with the same weights: ours, CTranslate2's, Hugging Face's.

A model starts as a checkpoint: one that was trained, or random weights of a named size. From there our exporter
writes bundles and a CTranslate2 folder, and `hugging_face` copies the tensors into a model of transformers.

An endless model never says EOS (its output bias forbids it), so that every side makes exactly as many steps as the
limit on new tokens says, without an option for it that might cost one side more than another. Random weights always
are; of trained weights there are both forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import torch

from dragoman.export.bundle import GRAPHS, load_manifest, load_tokenizer
from dragoman.export.calibration import MOST_TEXTS, CalibrationPair, tokenize
from dragoman.export.ctranslate2 import write_ctranslate2
from dragoman.export.precision import Precision
from dragoman.export.write import write_bundle
from dragoman.model.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint
from dragoman.model.config import ModelConfig
from dragoman.model.folder_kinds import is_ctranslate2_model
from dragoman.model.importers.hf.bart import _DECODER_LAYER, _ENCODER_LAYER
from dragoman.model.readers import Pair
from dragoman.model.search import generation_bias
from dragoman.model.tokenizers import SentencePieceTokenizer, SymbolSide, SymbolTokenizer, Tokenizer
from dragoman.model.transformer import Transformer
from dragoman.model.vocab import SPECIAL_IDS
from tests.benchmarks.workload import FIRST_WORD, lengths, load_pairs, random_sources

BUILT_IN = Path(__file__).parents[2] / "server" / "dragoman" / "server" / "models" / "en-de"
LONGEST = 256
BUILT_IN_NAME = "built-in"
_NEVER = -1e4
_SEED = 1
_RANDOM_TEXTS = 64

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """Shape of a model with random weights.

    Attributes:
        title: For tables.
        vocab_size: V.
        d_model: E.
        d_ff: F.
        num_heads: H.
        encoder: Layers.
        decoder: Layers.
        norm_position: Of every layer.
    """

    title: str
    vocab_size: int
    d_model: int
    d_ff: int
    num_heads: int
    encoder: int
    decoder: int
    norm_position: Literal["pre", "post"]

    def config(self) -> ModelConfig:
        """Return the configuration."""
        return ModelConfig(
            vocab_size=self.vocab_size,
            d_model=self.d_model,
            d_ff=self.d_ff,
            num_heads=self.num_heads,
            num_encoder_layers=self.encoder,
            num_decoder_layers=self.decoder,
            norm_position=self.norm_position,
            max_source_tokens=LONGEST,
            max_target_tokens=LONGEST,
            output_bias=True,
        )


SIZES = {
    "base": Size("transformer-base", 32_000, 512, 2048, 8, 6, 6, "post"),
    "default": Size("shape of the built-in model", 8_000, 256, 1024, 4, 6, 2, "pre"),
    "tiny": Size("tiny, for a trial run", 8_000, 64, 128, 2, 2, 1, "pre"),
}


class BenchModel:
    """One model and the folders that are made of it.

    Attributes:
        name: For files.
        title: For tables.
        checkpoint: Weights and tokenizer.
        trained: Whether it ends its texts itself.
    """

    def __init__(
        self,
        name: str,
        title: str,
        checkpoint: Checkpoint,
        folder: Path,
        *,
        trained: bool,
        calibration: Path | None = None,
    ) -> None:
        """Take a checkpoint; nothing is exported yet.

        Args:
            name: For files.
            title: For tables.
            checkpoint: Of the model.
            folder: For what is exported; what is there already is used again.
            trained: Whether it ends its texts itself.
            calibration: TSV of texts for the scales of int8-static, others than those that are measured; None means
                random ids, with which it is as fast and makes no sense.
        """
        self.name = name
        self.title = title
        self.checkpoint = checkpoint
        self.trained = trained
        self._folder = folder
        self._calibration = calibration

    @property
    def config(self) -> ModelConfig:
        """Shape."""
        return self.checkpoint.model.config

    def bundle(self, precision: Precision, devices: Sequence[str] | None = ("cpu",)) -> Path:
        """Return our bundle for devices, None for all; exported without verification if it is not there."""
        if self.name == BUILT_IN_NAME and precision == load_manifest(BUILT_IN).precision:
            return BUILT_IN
        out = self._folder / "-".join(["bundle", precision, *(devices or ())])
        if not out.exists():
            out.parent.mkdir(parents=True, exist_ok=True)
            texts = self._calibration_pairs() if precision == "int8-static" else []
            write_bundle(
                self.checkpoint, out, name=self.name, precision=precision, verify=None, calibration=texts,
                devices=devices,
            )  # fmt: skip
        return out

    def _calibration_pairs(self) -> list[CalibrationPair]:
        """Return texts for the scales of activations."""
        if self._calibration is not None:
            texts = load_pairs(self._calibration, MOST_TEXTS)
            pairs = [Pair(*pair) for pair in zip(texts.sources, texts.references, strict=True)]
            return tokenize(self.checkpoint, pairs, (self.checkpoint.source_language, self.checkpoint.target_language))
        return random_calibration(self.config.vocab_size, self.checkpoint.tokenizer.special.eos)

    def ctranslate2(self) -> Path:
        """Return CTranslate2's folder, in fp32: it makes other precisions when it loads."""
        out = self._folder / "ctranslate2"
        if not is_ctranslate2_model(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            write_ctranslate2(self.checkpoint, out, precision="fp32")
        return out

    def hugging_face(self) -> Any:
        """Return a model of transformers."""
        return hugging_face(self.checkpoint.model)

    def endless(self) -> BenchModel:
        """Return the same weights with an output bias that forbids EOS; itself if it has one already."""
        if not self.trained:
            return self
        model = Transformer(ModelConfig.from_dict({**self.config.to_dict(), "output_bias": True})).eval()
        state = self.checkpoint.model.state_dict()
        model.load_state_dict({"output.bias": torch.zeros(self.config.vocab_size), **state})
        forbid_eos(model, self.checkpoint.tokenizer.special.eos)
        folder = self._folder.with_name(f"{self._folder.name}-endless")
        return BenchModel(
            f"{self.name}-endless", self.title, replace(self.checkpoint, model=model), folder, trained=False
        )


def random_calibration(vocab_size: int, eos: int) -> list[CalibrationPair]:
    """Return random ids for scales of activations: which numbers they are does not change how long a product takes.

    Args:
        vocab_size: Ids are below it, of source and target.
        eos: The last one.
    """
    rows = random_sources(lengths("mixed", _RANDOM_TEXTS), vocab_size, first=FIRST_WORD, eos=eos)
    return [CalibrationPair(source, source) for source in rows]


def open_model(name: str, folder: Path, calibration: Path | None = None) -> BenchModel:
    """Return a model: a size of `SIZES` with random weights, "built-in", or the checkpoint or training run at a path.

    Args:
        name: Which.
        folder: For what is exported of this and other models.
        calibration: Texts for the scales of int8-static.

    Raises:
        CheckpointError: There is nothing usable at the path.
    """
    if name in SIZES:
        return random_model(name, SIZES[name], folder)
    if name == BUILT_IN_NAME:
        run = folder / name / "run"
        if latest_checkpoint(run) is None:
            write_built_in(run)
        return BenchModel(name, "the built-in model", load_checkpoint(run), folder / name, trained=True)
    path = Path(name).resolve()
    return BenchModel(
        path.name,
        f"trained: {path.name}",
        load_checkpoint(path),
        folder / f"at-{path.name}",
        trained=True,
        calibration=calibration,
    )


def random_model(name: str, size: Size, folder: Path) -> BenchModel:
    """Return a model with random weights, the same every time.

    Args:
        name: Of its folder.
        size: Its shape.
        folder: For what is exported of this and other models.
    """
    run = folder / name / "run"
    if latest_checkpoint(run) is None:
        _write_random(size, run)
    return BenchModel(name, f"{size.title}, random weights", load_checkpoint(run), folder / name, trained=False)


def _write_random(size: Size, run: Path) -> None:
    torch.manual_seed(_SEED)
    model = Transformer(size.config()).eval()
    forbid_eos(model, SPECIAL_IDS.eos)
    run.mkdir(parents=True, exist_ok=True)
    save_checkpoint(run, model, make_tokenizer(size.vocab_size), languages=("en", "de"), step=1)


@torch.no_grad()
def forbid_eos(model: Transformer, eos: int) -> None:
    """Change a model's output bias so that it never ends a text."""
    assert model.output_bias is not None, "it has no output bias"
    model.output_bias[eos] = _NEVER


def make_tokenizer(vocab_size: int) -> Tokenizer:
    """Return the built-in model's tokenizer where it has that many pieces, else one of numbered words."""
    built_in = SentencePieceTokenizer((BUILT_IN / SentencePieceTokenizer.FILE).read_bytes())
    if built_in.vocab_size == vocab_size:
        return built_in
    words = ("<pad>", "<unk>", "<s>", "</s>", *(f"w{i}" for i in range(4, vocab_size)))
    side = SymbolSide(words, "words", unk=SPECIAL_IDS.unk, after=(SPECIAL_IDS.eos,))
    return SymbolTokenizer(side, SPECIAL_IDS)


@torch.no_grad()
def hugging_face(model: Transformer) -> Any:
    """Return a model of transformers with our weights: MarianMT for post-norm, M2M100 for pre-norm.

    Positions are copied as tables, so the formulas of these families do not matter; ids that are never generated
    have -inf as their output bias. Everything is tied, as in models that were trained here.
    """
    import transformers

    config = model.config
    assert config.tied_embeddings == "all", "the families that are used here share one table"
    assert config.positions.startswith("sinusoidal"), "positions must be a table"
    pre = config.norm_position == "pre"
    kind = "M2M100" if pre else "Marian"
    theirs = getattr(transformers, f"{kind}Config")(
        vocab_size=config.vocab_size, d_model=config.d_model, activation_function=config.activation,
        encoder_layers=config.num_encoder_layers, decoder_layers=config.num_decoder_layers,
        encoder_attention_heads=config.num_heads, decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff, scale_embedding=config.scale_embedding,
        max_position_embeddings=config.max_target_tokens, pad_token_id=SPECIAL_IDS.pad, bos_token_id=SPECIAL_IDS.start,
        eos_token_id=SPECIAL_IDS.eos, decoder_start_token_id=SPECIAL_IDS.start, forced_eos_token_id=None,
    )  # fmt: skip
    found: Any = getattr(transformers, "M2M100ForConditionalGeneration" if pre else "MarianMTModel")(theirs).eval()
    weights = model.state_dict()
    for stack, names in (("encoder", _ENCODER_LAYER), ("decoder", _DECODER_LAYER)):
        of_stack = getattr(found.model, stack)
        layers = config.num_encoder_layers if stack == "encoder" else config.num_decoder_layers
        pairs = {f"layers.{i}.{name}": f"layers.{i}.{ours}" for i in range(layers) for name, ours in names.items()}
        if pre:
            pairs["layer_norm"] = "norm"
        state = {
            f"{name}.{part}": weights[f"{stack}.{ours}.{part}"]
            for name, ours in pairs.items()
            for part in ("weight", "bias")
        }
        state["embed_tokens.weight"] = weights["embedding.tokens.weight"]
        missing, surplus = of_stack.load_state_dict(state, strict=False)
        assert not [name for name in (*missing, *surplus) if "embed_positions" not in name], (missing, surplus)
        _set_positions(of_stack.embed_positions, getattr(model, stack).positions.table, pre=pre)
    found.model.shared.weight.copy_(weights["embedding.tokens.weight"])
    found.lm_head.weight.copy_(weights["embedding.tokens.weight"])
    bias = generation_bias(config.vocab_size, SPECIAL_IDS)
    if model.output_bias is not None:
        bias = bias + model.output_bias
    if pre:
        found.lm_head.bias = torch.nn.Parameter(bias)
    else:
        found.final_logits_bias.copy_(bias)
    return found


def _set_positions(embedding: Any, table: torch.Tensor, *, pre: bool) -> None:
    if pre:  # fairseq counts from behind the id of its padding
        embedding.weights[SPECIAL_IDS.pad + 1 :][: len(table)] = table
    else:
        embedding.weight[: len(table)] = table


def write_built_in(run: Path) -> None:
    """Write a checkpoint with the built-in model's weights, those of its 8-bit bundle times their scales.

    There is no other checkpoint of it in the repository. So every side gets weights that int8 represents exactly
    per column, and which are those that the built-in bundle computes with.

    Args:
        run: Folder to write to.
    """
    manifest = load_manifest(BUILT_IN)
    tensors: dict[str, Array] = {}
    for graph in GRAPHS:
        for tensor in onnx.load(BUILT_IN / graph).graph.initializer:
            tensors[tensor.name.removeprefix("model.")] = onnx.numpy_helper.to_array(tensor)
    for name in [name for name in tensors if name.endswith("_cross_steps")]:  # the product counts in steps of int8
        tensors[name.removesuffix("_cross_steps")] = tensors[name] * tensors["cross_scales"]
    weights = {name: value for name, value in tensors.items() if name.endswith((".weight", ".bias"))}
    for name in [name for name in tensors if name.endswith(".weight_i8")]:
        scales = tensors[name.replace("_i8", "_scales_static")]  # one per output
        matrix = tensors[name].astype(np.float32)
        # Outputs are columns, but for a tied table, whose rows are tokens; bundles of old have a column of each.
        by_rows = name.endswith("tokens.weight_i8") and len(matrix) == len(scales)
        weights[name.removesuffix("_i8")] = matrix * scales[:, None] if by_rows else (matrix * scales).T
    for name in [name for name in weights if "key_value_query" in name]:  # three projections in one product
        for part, value in zip(("key", "value", "query"), np.split(weights.pop(name), 3), strict=True):
            weights[name.replace("key_value_query", part)] = value
    for name in [
        name for name in weights if "layers.cross_attention.key_value" in name
    ]:  # of all layers in one product
        parts = np.split(weights.pop(name), 2 * manifest.shape.num_decoder_layers)
        for number, value in enumerate(parts):
            layer, part = number // 2, ("key", "value")[number % 2]
            own = f"layers.{layer}.cross_attention.{part}"
            weights[name.replace("layers.cross_attention.key_value", own)] = value
    config = {key: value for key, value in manifest.model.items() if key != "steps"}
    model = Transformer(ModelConfig.from_dict(config)).eval()
    model.load_state_dict({name: torch.tensor(np.ascontiguousarray(value)) for name, value in weights.items()})
    languages = (manifest.source_language, manifest.target_language)
    save_checkpoint(run, model, load_tokenizer(BUILT_IN, manifest), languages=languages, step=1)
