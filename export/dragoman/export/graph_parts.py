"""Which part of a model each constant of a graph belongs to: an encoder layer, a decoder layer, an embedding, ...

The exporter keeps the names of biases and norms but calls a transposed matrix `val_17`, and what comes after
it (quantisation, fusion) invents names of its own. So a constant is placed, in this order, by its name, by
named constants, notes of the exporter and tensors of the contract at the nodes that read it, and by the nearest
nodes along the flow of data that have a place. Nothing is guessed from sizes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import onnx

from dragoman.export import bundle

SHARED = "shared"
UNKNOWN = "unknown"
_LAYER = re.compile(r"\b(encoder|decoder)\.layers\.(\d+)\b")
_LAYERS = re.compile(r"\b(encoder|decoder)\.layers\.(?!\d)")
_STACK = re.compile(r"\b(encoder|decoder)\b(?!\.layers\b)")
_STATE = re.compile(r"(?:updated_)?(?:cross_key|cross_value|self_key|self_value|cell)\.(\d+)")
_OUTPUT = re.compile(r"(output_weight|bias)(_\w+)?|(model\.)?output\..*")
_LOOK_UPS = ("Gather", "GatherND")
_NOTES = ("pkg.torch.onnx.name_scopes", "namespace")


class PartFinder:
    """Places the constants of one graph."""

    def __init__(self, graph: onnx.GraphProto, *, post_norm: bool) -> None:
        """Read the graph.

        Args:
            graph: Of a bundle.
            post_norm: Norms stand behind what belongs to them, not in front of it.
        """
        self._nodes = list(graph.node)
        self._post_norm = post_norm
        self._readers: dict[str, list[int]] = defaultdict(list)
        self._makers: dict[str, int] = {}
        for index, node in enumerate(self._nodes):
            for name in dict.fromkeys(names_read(node)):
                self._readers[name].append(index)
            for name in node.output:
                self._makers[name] = index
        self._outputs = {value.name for value in graph.output}
        constants = {tensor.name for tensor in graph.initializer}
        self._places = [_place_of(node, constants) for node in self._nodes]

    def is_read(self, name: str) -> bool:
        """Whether any node reads a constant, or the graph returns it."""
        return bool(self._readers[name]) or name in self._outputs

    def part(self, name: str) -> str:
        """Return the part that a constant belongs to.

        Returns:
            "encoder.layers.0", "decoder.layers.0"; "decoder.layers" for a matrix of all layers; "encoder" and
            "decoder" for what stands outside of them; "embedding", "target_embedding", "output", `SHARED` between
            several of these, or `UNKNOWN`.
        """
        if (place := _named(name)) is not None:
            return place
        found = {place for i in self._readers[name] if (place := self._places[i] or self._near(i)) is not None}
        if all(self._nodes[index].op_type in _LOOK_UPS and not self._places[index] for index in self._readers[name]):
            found = {place.partition(".")[0] for place in found}  # positions come before the first layer
        return _together(found) if found else UNKNOWN

    def _near(self, index: int) -> str | None:
        """Return the place of the nearest nodes behind or before a node that has none itself."""
        behind, before = self._search(index, self._followers), self._search(index, self._leaders)
        if behind is None or before is None or behind == before:
            return behind or before
        if before.startswith("encoder") and behind.startswith("decoder"):
            return behind  # between the encoder and the keys and values of decoder layers
        if (precision := _precision(behind) - _precision(before)) != 0:
            return behind if precision > 0 else before  # sizes that several layers use come in from the side
        return behind if self._post_norm else before

    def _search(self, index: int, neighbours: Callable[[int], Iterable[int]]) -> str | None:
        seen = edge = {index}
        while edge:
            edge = {other for one in edge for other in neighbours(one)} - seen
            found = {place for one in edge if (place := self._places[one])}
            if found:
                return _together(found)
            seen = seen | edge
        return None

    def _followers(self, index: int) -> Iterable[int]:
        return (reader for name in self._nodes[index].output for reader in self._readers[name])

    def _leaders(self, index: int) -> Iterable[int]:
        return (self._makers[name] for name in names_read(self._nodes[index]) if name in self._makers)


def _together(places: set[str]) -> str:
    """Return the one place that several are."""
    if len(places) == 1:
        return next(iter(places))
    stacks = {place.rpartition(".")[0] if place[-1].isdigit() else place for place in places}
    return stacks.pop() if len(stacks) == 1 else SHARED


def _precision(place: str) -> int:
    return 0 if place == SHARED else 1 if place.endswith(".layers") else 2


def graphs_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the branches and bodies of a node."""
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield what a node reads, what its branches take from outside included."""
    yield from (name for name in node.input if name)
    for graph in graphs_in(node):
        own = {tensor.name for tensor in graph.initializer}
        own |= {name for inner in graph.node for name in inner.output} | {value.name for value in graph.input}
        yield from (name for inner in graph.node for name in names_read(inner) if name not in own)
        yield from (value.name for value in graph.output if value.name not in own)


def _place_of(node: onnx.NodeProto, constants: set[str]) -> str | None:
    """Return the place that a node itself tells, or None."""
    notes = {note.key: note.value for note in node.metadata_props}
    contract = {place for name in (*node.output, *node.input) if (place := _of_contract(name)) is not None}
    places = [
        *(_named(name) for name in names_read(node) if name in constants),
        *(_noted(notes[key]) for key in _NOTES if key in notes),
        _together(contract) if contract else None,
    ]
    told = [place for place in places if place is not None]
    # A layer says more than a stack.
    return next((place for place in told if "." in place), told[0] if told else None)


def _named(name: str) -> str | None:
    """Return the place that the name of a weight tells."""
    if match := _LAYER.search(name):
        return match[0]
    if match := _LAYERS.search(name):
        return f"{match[1]}.layers"
    if match := _STACK.search(name):
        return match[1]
    for table in ("target_embedding", "embedding"):
        if table in name:
            return table
    return "output" if _OUTPUT.fullmatch(name) else None


def _noted(note: str) -> str | None:
    """Return the innermost place of the modules that the exporter notes, outermost first."""
    if found := _LAYER.findall(note):
        stack, layer = found[-1]
        return f"{stack}.layers.{layer}"
    if stacks := _STACK.findall(note):
        return str(stacks[-1])
    return next((table for table in ("target_embedding", "embedding") if f"model.{table}" in note), None)


def _of_contract(name: str) -> str | None:
    if match := _STATE.fullmatch(name):
        return f"decoder.layers.{match[1]}"
    if name == bundle.CROSS_LAST:
        return "decoder.layers"
    return "output" if name in (bundle.NEXT_IDS, bundle.LOGITS) else None
