"""A Transformer written out in the plainest way, with the tensor names of whatever library is asked for.

It stands in for libraries that are not at hand, and follows what their code computes: every norm, bias and scale is
looked up by name in one dictionary, so that a name that means something else gives other logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Naming:
    """What one library calls its tensors.

    Attributes:
        layers: Of each stack, "encoder" and "decoder": what is in front of a layer's names; "{}" is its number.
        parts: Of each stack: our name of a part of a layer, its name there. Parts are "self", "cross" (attention),
            "expand", "contract", "gate", and "norm_self", "norm_cross", "norm_forward".
        heads: Names of the projections of queries, keys, values and the output.
        tables: Names of source, target and output matrix, without ".weight".
        final: Of each stack, the name of its last norm.
        embedding_norm: Of each stack, the name of the norm on embeddings; "{}" is the stack.
    """

    layers: dict[str, str]
    parts: dict[str, dict[str, str]]
    heads: tuple[str, str, str, str]
    tables: tuple[str, str, str]
    final: dict[str, str]
    embedding_norm: str = ""


@dataclass(frozen=True, slots=True)
class Plain:
    """What it computes.

    Attributes:
        pre: Norms are in front of sublayers, and one is behind each stack.
        scale: Embeddings are multiplied by it.
        epsilon: Of norms.
        activation: Of the feed-forward layer.
        positions: [N, E], or one for each stack.
        source, target: Sizes of the vocabularies.
        tied: "all", "output" or "none".
        output_bias: The output has one.
        attention_bias: The projections of attention have one.
        embedding_norm: Embeddings are normalised.
        gated: The feed-forward layer has a gate.
    """

    positions: dict[str, Tensor] | Tensor
    pre: bool = False
    scale: float = 1.0
    epsilon: float = 1e-5
    activation: Callable[[Tensor], Tensor] = functional.relu
    source: int = 36
    target: int = 40
    tied: str = "none"
    output_bias: bool = False
    attention_bias: bool = True
    embedding_norm: bool = False
    gated: bool = False
    depth: dict[str, int] = field(default_factory=lambda: {"encoder": 2, "decoder": 3})
    width: int = 32
    forward: int = 48
    heads: int = 4


class PlainTransformer:
    """The model.

    Attributes:
        state: All tensors by the library's names; those that are one tensor are the same object.
    """

    def __init__(self, plain: Plain, naming: Naming) -> None:
        """Draw all weights from torch's generator."""
        self.plain = plain
        self.naming = naming
        self.state: dict[str, Tensor] = {}
        for stack in ("encoder", "decoder"):
            for number in range(plain.depth[stack]):
                self._make_layer(stack, number)
            if plain.pre:
                self._norm(naming.final[stack])
            if plain.embedding_norm:
                self._norm(naming.embedding_norm.format(stack))
        source, target, output = naming.tables
        self.state[f"{target}.weight"] = torch.randn(plain.target, plain.width) / math.sqrt(plain.width)
        shared = plain.tied == "all"
        own = torch.randn(plain.source, plain.width) / math.sqrt(plain.width)
        self.state[f"{source}.weight"] = self.state[f"{target}.weight"] if shared else own
        own = torch.randn(plain.target, plain.width) / math.sqrt(plain.width)
        self.state[f"{output}.weight"] = own if plain.tied == "none" else self.state[f"{target}.weight"]
        if plain.output_bias:
            self.state[f"{output}.bias"] = torch.randn(plain.target) * 0.1

    @property
    def output(self) -> Tensor:
        """[V, E], the output matrix."""
        return self.state[f"{self.naming.tables[2]}.weight"]

    def parameters(self) -> list[Tensor]:
        """Return all tensors, each once."""
        return list({id(tensor): tensor for tensor in self.state.values()}.values())

    def tables(self) -> list[Tensor]:
        """Return the embeddings."""
        return [self.state[f"{name}.weight"] for name in self.naming.tables]

    def logits(self, source: list[int], target: list[int]) -> Tensor:
        """Return [T, V] of one source and one target."""
        memory = self._run("encoder", self._embed("encoder", source), None)
        states = self._run("decoder", self._embed("decoder", target), memory)
        return self._affine(self.naming.tables[2], states)

    def _make_layer(self, stack: str, number: int) -> None:
        plain, where = self.plain, self.naming.layers[stack].format(number)
        for part, name in self.naming.parts[stack].items():
            if part in ("self", "cross"):
                for head in self.naming.heads:
                    self._matrix(f"{where}.{name}.{head}", plain.width, plain.width, bias=plain.attention_bias)
            elif part.startswith("norm"):
                self._norm(f"{where}.{name}")
            elif part != "gate" or plain.gated:
                sizes = (plain.width, plain.forward) if part == "contract" else (plain.forward, plain.width)
                self._matrix(f"{where}.{name}", *sizes, bias=True)

    def _matrix(self, name: str, rows: int, columns: int, *, bias: bool) -> None:
        self.state[f"{name}.weight"] = torch.nn.init.xavier_uniform_(torch.empty(rows, columns))
        if bias:
            self.state[f"{name}.bias"] = torch.zeros(rows)

    def _norm(self, name: str) -> None:
        self.state[f"{name}.weight"], self.state[f"{name}.bias"] = (
            torch.ones(self.plain.width),
            torch.zeros(self.plain.width),
        )

    def _affine(self, name: str, states: Tensor) -> Tensor:
        return functional.linear(states, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"))

    def _normalised(self, name: str, states: Tensor) -> Tensor:
        weight, bias = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
        return functional.layer_norm(states, (self.plain.width,), weight, bias, self.plain.epsilon)

    def _embed(self, stack: str, ids: list[int]) -> Tensor:
        name = self.naming.tables[0 if stack == "encoder" else 1]
        table = self.plain.positions
        positions = table[stack] if isinstance(table, dict) else table
        states = self.state[f"{name}.weight"][ids] * self.plain.scale + positions[: len(ids)]
        return (
            self._normalised(self.naming.embedding_norm.format(stack), states) if self.plain.embedding_norm else states
        )

    def _run(self, stack: str, states: Tensor, memory: Tensor | None) -> Tensor:
        parts = self.naming.parts[stack]
        for number in range(self.plain.depth[stack]):
            where = self.naming.layers[stack].format(number)

            def attend(x: Tensor, where: str = where) -> Tensor:
                return self._attention(f"{where}.{parts['self']}", x, x, causal=memory is not None)

            def attend_source(x: Tensor, where: str = where) -> Tensor:
                assert memory is not None
                return self._attention(f"{where}.{parts['cross']}", x, memory, causal=False)

            def forward(x: Tensor, where: str = where) -> Tensor:
                hidden = self.plain.activation(self._affine(f"{where}.{parts['expand']}", x))
                if self.plain.gated:
                    hidden = hidden * self._affine(f"{where}.{parts['gate']}", x)
                return self._affine(f"{where}.{parts['contract']}", hidden)

            states = self._residual(f"{where}.{parts['norm_self']}", states, attend)
            if memory is not None:
                states = self._residual(f"{where}.{parts['norm_cross']}", states, attend_source)
            states = self._residual(f"{where}.{parts['norm_forward']}", states, forward)
        return self._normalised(self.naming.final[stack], states) if self.plain.pre else states

    def _residual(self, norm: str, states: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        if self.plain.pre:
            return states + function(self._normalised(norm, states))
        return self._normalised(norm, states + function(states))

    def _attention(self, name: str, queries: Tensor, keys: Tensor, *, causal: bool) -> Tensor:
        query, key, value, output = (f"{name}.{head}" for head in self.naming.heads)
        size = self.plain.width // self.plain.heads
        q, k, v = (
            self._affine(part, states).reshape(len(states), -1, size).transpose(0, 1)
            for part, states in ((query, queries), (key, keys), (value, keys))
        )
        scores = q @ k.transpose(1, 2) / math.sqrt(size)
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
        return self._affine(output, (scores.softmax(dim=-1) @ v).transpose(0, 1).flatten(1))
