"""Marian models with random weights, written as Marian writes them and computed from its formulas in numpy.

Nothing here knows our Transformer: it is what the imported model is compared with. One sentence at a time, the
whole prefix at every step.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.model.beam import BeamRow, BeamSettings, Hypothesis

Array = NDArray[Any]

EOS, UNK = 0, 1
VOCABULARY = 60
OPTIONS: dict[str, Any] = {
    "type": "transformer",
    "version": "v1.12.0 65bf82ff 2023-02-21 09:56:29 -0800",
    "dim-vocabs": [VOCABULARY, VOCABULARY],
    "dim-emb": 32,
    "enc-depth": 2,
    "dec-depth": 2,
    "transformer-heads": 4,
    "transformer-dim-ffn": 48,
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "dec-cell": "gru",
    "tied-embeddings-all": True,
    "tied-embeddings-src": False,
    "tied-embeddings": False,
    "output-omit-bias": False,
    "transformer-no-projection": False,
    "transformer-tied-layers": [],
    "input-types": [],
    "layer-normalization": False,
    "right-left": False,
    "transformer-guided-alignment-layer": "last",
}
PRE = {
    "transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n",
}  # fmt: skip
SSRU = {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}
UNTIED = {"tied-embeddings-all": False}


@dataclass(frozen=True, slots=True)
class MarianModel:
    """A model.

    Attributes:
        options: As in `special:model.yml`.
        weights: By name, [in, out] or [1, n], float32.
    """

    options: dict[str, Any]
    weights: dict[str, Array]

    def write_npz(self, path: Path, *, embedded: bool = True) -> Path:
        """Write `path`, with the options inside or beside it, and return it."""
        text = yaml_of(self.options)
        arrays: dict[str, Any] = dict(self.weights)
        if embedded:
            arrays["special:model.yml"] = np.frombuffer(text.encode() + b"\0", np.int8)
        else:
            path.with_name(f"{path.name}.yml").write_text(text, "utf-8")
        np.savez(path, **arrays)
        return path

    def write_bin(self, path: Path, *, bits: int = 32) -> Path:
        """Write the binary format, matrices in 8 or 16 bits if so asked, and return `path`."""
        items = [_item(name, array, bits) for name, array in self.weights.items()]
        text = yaml_of(self.options).encode() + b"\0"
        items.append(("special:model.yml", 0x101, (len(text),), text))
        path.write_bytes(binary(items))
        return path

    def rounded(self, bits: int) -> MarianModel:
        """Return the model that is left when matrices have so many bits."""
        weights = {n: dequantised(a, bits) if _is_product(n) else a for n, a in self.weights.items()}
        return MarianModel(self.options, weights)


def random_model(seed: int = 0, **options: Any) -> MarianModel:
    """Return a model whose options are `OPTIONS` with others in their place, and whose texts vary.

    Embeddings are small beside positions, so that the model does not repeat its last token for ever, and the last
    norm makes up for it, so that logits are far apart.
    """
    settings = {**OPTIONS, **options}
    number = [settings["dec-depth"], *settings["transformer-tied-layers"]][-1]
    last = ("decoder_top_", f"decoder_l{number}_ffn_ffn_")
    draw = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes(settings).items():
        if "_ln_scale" in name or "_rms_scale" in name:
            array = (1.0 + 0.1 * draw.normal(size=shape)) * (-4.0 if name.startswith(last) else 1.0)
        elif shape[0] == 1:
            array = 0.1 * draw.normal(size=shape)
        elif "emb" in name or "logit_out" in name:
            array = 1.0 * draw.normal(size=shape) / math.sqrt(settings["dim-emb"])
        else:
            array = (0.8 if name.endswith(("_Wo", "_Wv")) else 2.0) * draw.normal(size=shape) / math.sqrt(shape[0])
        weights[name] = array.astype(np.float32)
    if "decoder_ff_logit_out_b" in weights:
        weights["decoder_ff_logit_out_b"][0, EOS] += 4  # so that most texts end
    return MarianModel(settings, weights)


def shapes(options: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the shape of every tensor that such a model has."""
    size, inner = options["dim-emb"], options["transformer-dim-ffn"]
    found: dict[str, tuple[int, int]] = {}

    def norm(prefix: str, *, pre: bool) -> None:
        kind = "rms" if "r" in options["transformer-preprocess"] + options["transformer-postprocess"] else "ln"
        for part in ("scale", "bias") if kind == "ln" else ("scale",):
            found[f"{prefix}_{kind}_{part}{'_pre' if pre else ''}"] = (1, size)

    def attention(prefix: str) -> None:
        for letter in "qkv" if options["transformer-no-projection"] else "qkvo":
            found[f"{prefix}_W{letter}"], found[f"{prefix}_b{letter}"] = (size, size), (1, size)
        norm(f"{prefix}_Wo", pre=is_pre)

    def feed_forward(prefix: str) -> None:
        found[f"{prefix}_W1"], found[f"{prefix}_b1"] = (size, inner), (1, inner)
        found[f"{prefix}_W2"], found[f"{prefix}_b2"] = (inner, size), (1, size)
        norm(f"{prefix}_ffn", pre=is_pre)

    is_pre = bool(options["transformer-preprocess"])
    for layer in range(1, options["enc-depth"] + 1):
        attention(f"encoder_l{layer}_self")
        feed_forward(f"encoder_l{layer}_ffn")
    for layer in sorted(set(options["transformer-tied-layers"] or range(1, options["dec-depth"] + 1))):
        if options["transformer-decoder-autoreg"] == "rnn":
            prefix = f"decoder_l{layer}_rnn"
            found |= {f"{prefix}_W": (size, size), f"{prefix}_Wf": (size, size), f"{prefix}_bf": (1, size)}
            norm(prefix if is_pre else f"{prefix}_ffn", pre=is_pre)
        else:
            attention(f"decoder_l{layer}_self")
        attention(f"decoder_l{layer}_context")
        feed_forward(f"decoder_l{layer}_ffn")
    if options["transformer-postprocess-top"]:
        norm("encoder_top", pre=False)
        norm("decoder_top", pre=False)
    return found | _embedding_shapes(options)


def _embedding_shapes(options: dict[str, Any]) -> dict[str, tuple[int, int]]:
    size, (source, target) = options["dim-emb"], options["dim-vocabs"]
    every, both, output = (options[f"tied-embeddings{name}"] for name in ("-all", "-src", ""))
    found = (
        {"Wemb": (target, size)} if every or both else {"encoder_Wemb": (source, size), "decoder_Wemb": (target, size)}
    )
    if not every and not output:
        found["decoder_ff_logit_out_Wt"] = (target, size)
    if not options["output-omit-bias"]:
        found["decoder_ff_logit_out_b"] = (1, target)
    return found


class Reference:
    """What Marian computes, position by position, in float64."""

    def __init__(self, model: MarianModel) -> None:
        """Take the weights."""
        self.options = model.options
        self._w = {name: array.astype(np.float64) for name, array in model.weights.items()}

    def logits(self, source: Sequence[int], target: Sequence[int]) -> Array:
        """Return [T + 1, V] float64: what follows nothing, the first target token, and so on."""
        w, o = self._w, self.options
        memory = self.encode(source)
        shared = o["tied-embeddings-all"] or o["tied-embeddings-src"]
        table = w["Wemb"] if shared else w["decoder_Wemb"]
        states = self._positions(np.concatenate([np.zeros((1, o["dim-emb"])), table[list(target)]]))
        count = len(states)
        seen = np.tril(np.ones((count, count), bool))
        for layer in o["transformer-tied-layers"] or range(1, o["dec-depth"] + 1):
            name = f"decoder_l{layer}"
            if o["transformer-decoder-autoreg"] == "rnn":
                states = self._ssru(f"{name}_rnn", states)
            else:
                states = self._attention(f"{name}_self", states, None, seen)
            states = self._attention(f"{name}_context", states, memory, np.ones((count, len(memory)), bool))
            states = self._feed_forward(f"{name}_ffn", states)
        states = self._top("decoder_top", states)
        tied = o["tied-embeddings-all"] or o["tied-embeddings"]
        out = table if tied else w["decoder_ff_logit_out_Wt"]
        return states @ out.T + w.get("decoder_ff_logit_out_b", np.zeros((1, len(out))))

    def encode(self, source: Sequence[int]) -> Array:
        """Return [S, E] float64."""
        table = self._w.get("Wemb", self._w.get("encoder_Wemb"))
        assert table is not None
        states = self._positions(table[list(source)])
        every = np.ones((len(source), len(source)), bool)
        for layer in range(1, self.options["enc-depth"] + 1):
            states = self._attention(f"encoder_l{layer}_self", states, None, every)
            states = self._feed_forward(f"encoder_l{layer}_ffn", states)
        return self._top("encoder_top", states)

    def greedy(self, source: Sequence[int], limit: int) -> list[int]:
        """Return the most probable tokens one by one; the unknown is never chosen."""
        tokens: list[int] = []
        while len(tokens) < limit and tokens[-1:] != [EOS]:
            logits = self.logits(source, tokens)[-1]
            logits[UNK] = -np.inf
            tokens.append(int(logits.argmax()))
        return tokens

    def beam(self, source: Sequence[int], limit: int, beams: int = 4) -> Hypothesis:
        """Return the best of `beams` hypotheses by mean log-probability."""
        settings = BeamSettings(beams)
        row = BeamRow(settings, limit=limit, eos=EOS)
        while not row.done:
            tokens, scores = [], []
            for live in row.live:
                logits = self.logits(source, live.tokens)[-1]
                log_probs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
                log_probs[UNK] = -np.inf
                best = np.argsort(-log_probs)[: settings.candidates]
                tokens.append(best.tolist())
                scores.append(log_probs[best].tolist())
            row.advance(tokens, scores)
        return row.hypotheses[0]

    def _positions(self, embedded: Array) -> Array:
        size = embedded.shape[1]
        half = size // 2
        rates = np.exp(-np.arange(half) * math.log(10000) / (half - 1))
        angles = np.arange(len(embedded))[:, None] * rates
        signal: Array = math.sqrt(size) * embedded + np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        return signal

    def _around(self, pre: str, post: str, states: Array, function: Callable[[Array], Array]) -> Array:
        """Operations in front of and behind a sublayer; "d" is dropout."""
        inside = states
        for op in self.options["transformer-preprocess"].replace("d", ""):
            inside = self._norm(op, pre, "_pre", inside)
        result = function(inside)
        for op in self.options["transformer-postprocess"].replace("d", ""):
            result = result + states if op == "a" else self._norm(op, post, "", result)
        return result

    def _top(self, prefix: str, states: Array) -> Array:
        for op in self.options["transformer-postprocess-top"].replace("d", ""):
            states = self._norm(op, prefix, "", states)
        return states

    def _norm(self, op: str, prefix: str, suffix: str, states: Array) -> Array:
        if op == "r":
            root = np.sqrt((states**2).mean(axis=1, keepdims=True) + 1e-6)
            scaled: Array = states / root * self._w[f"{prefix}_rms_scale{suffix}"]
            return scaled
        centred = states - states.mean(axis=1, keepdims=True)
        root = np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6)
        normed: Array = centred / root * self._w[f"{prefix}_ln_scale{suffix}"] + self._w[f"{prefix}_ln_bias{suffix}"]
        return normed

    def _attention(self, prefix: str, states: Array, memory: Array | None, seen: Array) -> Array:
        w, heads = self._w, self.options["transformer-heads"]

        def attend(x: Array) -> Array:
            keys_of = x if memory is None else memory
            query, key, value = (
                (rows @ w[f"{prefix}_W{n}"] + w[f"{prefix}_b{n}"]).reshape(len(rows), heads, -1).swapaxes(0, 1)
                for n, rows in (("q", x), ("k", keys_of), ("v", keys_of))
            )
            scores = query @ key.swapaxes(1, 2) / math.sqrt(query.shape[-1])
            scores = np.where(seen, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            joined: Array = (weights @ value).swapaxes(0, 1).reshape(len(x), -1)
            if not self.options["transformer-no-projection"]:
                joined = joined @ w[f"{prefix}_Wo"] + w[f"{prefix}_bo"]
            return joined

        return self._around(f"{prefix}_Wo", f"{prefix}_Wo", states, attend)

    def _ssru(self, prefix: str, states: Array) -> Array:
        w = self._w

        def recur(x: Array) -> Array:
            cell = np.zeros(x.shape[1])
            outputs = []
            for row in x:
                forget = 1 / (1 + np.exp(-(row @ w[f"{prefix}_Wf"] + w[f"{prefix}_bf"][0])))
                cell = forget * cell + (1 - forget) * (row @ w[f"{prefix}_W"])
                outputs.append(np.maximum(cell, 0))
            return np.stack(outputs)

        return self._around(prefix, f"{prefix}_ffn", states, recur)

    def _feed_forward(self, prefix: str, states: Array) -> Array:
        w = self._w
        functions: dict[str, Callable[[Array], Array]] = {
            "relu": lambda x: np.maximum(x, 0),
            "swish": lambda x: x / (1 + np.exp(-x)),
            "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
        }
        activation = functions[self.options["transformer-ffn-activation"]]

        def expand(x: Array) -> Array:
            hidden = activation(x @ w[f"{prefix}_W1"] + w[f"{prefix}_b1"])
            contracted: Array = hidden @ w[f"{prefix}_W2"] + w[f"{prefix}_b2"]
            return contracted

        return self._around(f"{prefix}_ffn", f"{prefix}_ffn", states, expand)


def yaml_of(options: dict[str, Any]) -> str:
    """Return options as Marian writes them: texts without quotes where they need none."""

    def written(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list):
            return "[" + ", ".join(map(str, value)) + "]"
        return str(value) or '""'

    return "".join(f"{name}: {written(value)}\n" for name, value in options.items())


def dequantised(array: Array, bits: int) -> Array:
    """Return a matrix as it comes back from 8 or 16 bits."""
    integers, multiplier = _quantised(array, bits)
    return integers.astype(np.float32) / np.float32(multiplier)


def binary(items: Sequence[tuple[str, int, tuple[int, ...], bytes]]) -> bytes:
    """Return a file of name, type, shape and block of each item."""
    content = struct.pack("<2Q", 1, len(items))
    for name, kind, shape, data in items:
        content += struct.pack("<4Q", len(name.encode()) + 1, kind, len(shape), len(data))
    content += b"".join(name.encode() + b"\0" for name, *_ in items)
    content += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = 256 - (len(content) + 8) % 256
    return content + struct.pack("<Q", padding) + bytes(padding) + b"".join(data for *_, data in items)


def _item(name: str, array: Array, bits: int) -> tuple[str, int, tuple[int, ...], bytes]:
    if bits == 32 or not _is_product(name):
        return name, 0x404, array.shape, array.astype("<f4").tobytes()
    integers, multiplier = _quantised(array, bits)
    stored = integers if "Wemb" in name else integers.T
    data = np.ascontiguousarray(stored).tobytes() + struct.pack("<f", multiplier)
    data += bytes(-len(data) % 256)  # blocks end at multiples of 256
    return name, {8: 0x4101, 16: 0x4102}[bits], array.shape, data


def _quantised(array: Array, bits: int) -> tuple[Array, float]:
    multiplier = 127 / float(np.abs(array).max()) if bits == 8 else 1024.0
    return np.round(array * multiplier).astype({8: np.int8, 16: np.int16}[bits]), multiplier


def _is_product(name: str) -> bool:
    """Whether the file's 8 or 16 bits are for it: the matrices that are multiplied with."""
    last = name.rsplit("_", 1)[-1]
    return last == "Wemb" or last.startswith("W")
