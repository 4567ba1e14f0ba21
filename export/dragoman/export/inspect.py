"""Everything a bundle says about itself, and whether its graphs keep what its manifest promises.

Loads as the server does, so a broken bundle gives the same errors, and reads the graphs without running them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.export.graph_facts import Amounts, GraphFacts, read_graph, total


@dataclass(frozen=True, slots=True)
class StateMemory:
    """What a server keeps of one text, in bytes. A beam of k takes k times the target's.

    Attributes:
        per_source_token: Keys and values of the source in all decoder layers.
        per_target_token: Keys and values of the target; 0 with recurrent cells.
        fixed: Recurrent cells and keys and values of the last source position, whatever the length.
        longest: Of a text at both limits.
    """

    per_source_token: int
    per_target_token: int
    fixed: int
    longest: int


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """A whole and readable bundle.

    Attributes:
        folder: Where it is.
        manifest: What it says.
        tokenizer_kind: Name of the kind.
        source_vocab_size: Ids of the source.
        files: Bytes of each file.
        graphs: In the order of `bundle.GRAPHS`.
        state: Memory for each text.
        problems: Where graphs and manifest do not fit together; empty if they do.
    """

    folder: Path
    manifest: Manifest
    tokenizer_kind: str
    source_vocab_size: int
    files: dict[str, int]
    graphs: tuple[GraphFacts, ...]
    state: StateMemory
    problems: tuple[str, ...]

    @property
    def on_request(self) -> dict[str, str]:
        """Outputs that the decoder computes only if it is asked, with type and axes."""
        outputs = self.graphs[1].outputs
        return {name: outputs[name] for names in bundle.ON_REQUEST.values() for name in names if name in outputs}

    @property
    def amounts(self) -> Amounts:
        """Parameters of all graphs by type."""
        return total(graph.amounts for graph in self.graphs)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping: the manifest's fields and what was found."""
        languages = self.manifest.languages
        return {
            **self.manifest.to_dict(),
            "version": self.manifest.version,
            "folder": str(self.folder),
            "languages": {"sources": list(languages.sources), "targets": list(languages.targets)},
            "tokenizer_kind": self.tokenizer_kind,
            "source_vocab_size": self.source_vocab_size,
            "files": self.files,
            "on_request": self.on_request,
            "parameters": {kind: asdict(amount) for kind, amount in self.amounts.items()},
            "graphs": {graph.name: graph.to_dict() for graph in self.graphs},
            "state_bytes": asdict(self.state),
            "problems": list(self.problems),
        }


def inspect_bundle(folder: Path) -> BundleFacts:
    """Read a bundle.

    Raises:
        BundleError: It cannot be used; says why and what to do.
    """
    manifest = bundle.load_manifest(folder)
    tokenizer = bundle.load_tokenizer(folder, manifest)
    post_norm = manifest.model.get("norm_position") == "post"
    graphs = tuple(read_graph(folder / name, post_norm=post_norm) for name in bundle.GRAPHS)
    return BundleFacts(
        folder=folder,
        manifest=manifest,
        tokenizer_kind=tokenizer.kind,
        source_vocab_size=tokenizer.source_vocab_size,
        files={name: (folder / name).stat().st_size for name in (*manifest.files, bundle.MANIFEST)},
        graphs=graphs,
        state=_state_memory(manifest, graphs[1]),
        problems=tuple(_problems(manifest, *graphs)),
    )


def _state_memory(manifest: Manifest, decoder: GraphFacts) -> StateMemory:
    shape, limits = manifest.shape, manifest.limits
    layers = range(shape.num_decoder_layers)
    states = [name for i in layers for name in shape.state_names(i)]
    state = sum(_width(decoder.inputs.get(name, "float32")) for name in states) * int(np.prod(shape.state_size(1, 1)))
    cross = [name for i in layers for name in bundle.cross_names(i)]
    source = sum(_width(decoder.inputs.get(name, "float32")) for name in cross) * shape.num_heads * shape.head_dim
    cells = shape.decoder_layer == bundle.SSRU
    target, fixed = (0, state) if cells else (state, 0)
    if bundle.CROSS_LAST in decoder.inputs:
        last = len(cross) * shape.num_heads * shape.head_dim
        fixed += _width(decoder.inputs[bundle.CROSS_LAST]) * last
    longest = source * limits.max_source_tokens + target * limits.max_target_tokens + fixed
    return StateMemory(source, target, fixed, longest)


def _width(described: str) -> int:
    """Return the bytes of one number of a tensor that is described as in `GraphFacts.inputs`."""
    return np.dtype(described.split()[0]).itemsize


def _problems(manifest: Manifest, encoder: GraphFacts, decoder: GraphFacts) -> Iterator[str]:
    shape = manifest.shape
    layers = range(shape.num_decoder_layers)
    cross = [name for i in layers for name in bundle.cross_names(i)]
    states = [name for i in layers for name in shape.state_names(i)]
    updated = [name for i in layers for name in shape.updated_state_names(i)]
    ids = [bundle.INPUT_IDS, bundle.SOURCE_LENGTHS]
    yield from _missing(encoder.name, "input", ids, encoder.inputs)
    yield from _missing(encoder.name, "output", cross, encoder.outputs)
    yield from _missing(decoder.name, "input", [*ids, bundle.CACHE_LENGTHS, *states, *cross], decoder.inputs)
    yield from _missing(decoder.name, "output", [bundle.NEXT_IDS, *updated], decoder.outputs)
    heads: tuple[int | None, ...] = (None, shape.num_heads, None, shape.head_dim)
    state = (None, shape.cell_width) if shape.decoder_layer == bundle.SSRU else heads
    for graph, names, axes in ((encoder, cross, heads), (decoder, cross, heads), (decoder, [*states, *updated], state)):
        yield from _wrong_axes(graph, names, axes)
    yield from _wrong_axes(decoder, [bundle.LOGITS], (None, None, shape.vocab_size))
    last = [bundle.CROSS_LAST] if manifest.cross_last or bundle.CROSS_LAST in decoder.inputs else []
    yield from _missing(encoder.name, "output", last, encoder.outputs, promised_by="the decoder or the manifest")
    yield from _missing(decoder.name, "input", last, decoder.inputs, promised_by="the manifest")
    if last and not manifest.cross_last:
        yield f"{decoder.name} reads {bundle.CROSS_LAST}, and the manifest does not say so; export the bundle again"
    for graph in (encoder, decoder):
        yield from _wrong_axes(graph, last, (None, len(cross), shape.num_heads * shape.head_dim))
    yield from _other_types(encoder, decoder, [*cross, *last])
    for asked, outputs in bundle.ON_REQUEST.items():
        if asked in decoder.inputs:
            # There were graphs that chose candidates before there were any that said what to normalise by.
            always = [name for name in outputs if name != bundle.LOG_NORMALIZER]
            yield from _missing(decoder.name, "output", always, decoder.outputs, promised_by=f"its input {asked}")
    for graph in (encoder, decoder):
        for name in graph.external:
            if name not in manifest.sha256:
                yield f"{graph.name} reads {name}, which the manifest has no hash of; export the bundle again"


def _missing(
    graph: str, kind: str, names: Sequence[str], found: dict[str, str], promised_by: str = "the manifest's shape"
) -> Iterator[str]:
    absent = [name for name in names if name not in found]
    if absent:
        yield f"{graph} has no {kind} {', '.join(absent)}, which {promised_by} promises; export the bundle again"


def _other_types(encoder: GraphFacts, decoder: GraphFacts, names: Sequence[str]) -> Iterator[str]:
    """Compare the types of what one graph hands to the other."""
    for name in names:
        found = [
            described.split()[0] for described in (encoder.outputs.get(name), decoder.inputs.get(name)) if described
        ]
        if len(set(found)) > 1:
            yield (
                f"{encoder.name} returns {name} as {found[0]}, {decoder.name} takes {found[1]}; export the bundle again"
            )


def _wrong_axes(graph: GraphFacts, names: list[str], axes: tuple[int | None, ...]) -> Iterator[str]:
    """Compare the fixed axes of tensors with those that the manifest's shape says."""
    for name in names:
        described = graph.inputs.get(name) or graph.outputs.get(name)
        if described is None:
            continue
        found = described.partition("[")[2].rstrip("]").split(", ")
        wrong = len(found) != len(axes) or any(
            axis is not None and size.isdecimal() and int(size) != axis for size, axis in zip(found, axes, strict=False)
        )
        if wrong:
            wanted = ", ".join("any" if axis is None else str(axis) for axis in axes)
            yield f"{graph.name}: {name} is {described}, the manifest's shape says [{wanted}]; export the bundle again"
