"""Runs a bundle's two graphs with plain calls: the reference loop of verification.

No binding, no batching policy, every step copies the states: as simple as a loop over the contract
can be. The server has its own runtime, which the tests compare with this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from dragoman.export import bundle
from dragoman.export.bundle import Manifest

Array = NDArray[Any]


class BundleSession:
    """The graphs of one bundle on the CPU."""

    def __init__(self, folder: Path) -> None:
        """Load both graphs.

        Raises:
            BundleError: The bundle is damaged.
        """
        self.manifest: Manifest = bundle.load_manifest(folder)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # out-of-place caches are meant here, not worth a warning
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # small steps, often shared CPUs
        providers = ["CPUExecutionProvider"]
        self._encoder = onnxruntime.InferenceSession(folder / bundle.ENCODER, options, providers)
        self._decoder = onnxruntime.InferenceSession(folder / bundle.DECODER, options, providers)
        self._layers = range(self.manifest.shape.num_decoder_layers)

    def encode(self, sources: Sequence[Sequence[int]]) -> dict[str, Array]:
        """Return everything a decode step needs to know about the sources."""
        lengths = np.array([len(source) for source in sources], np.int64)
        ids = np.full((len(sources), int(lengths.max())), self.manifest.special.pad, np.int64)
        for row, source in enumerate(sources):
            ids[row, : len(source)] = source
        names = [name for i in self._layers for name in bundle.cross_names(i)]
        values = self._encoder.run(names, {bundle.INPUT_IDS: ids, bundle.SOURCE_LENGTHS: lengths})
        return {bundle.SOURCE_LENGTHS: lengths, **dict(zip(names, values, strict=True))}

    def initial_states(self, rows: int, size: int) -> dict[str, Array]:
        """Return the layer states of rows that have read nothing, for up to `size` tokens."""
        shape = self.manifest.shape
        size_of_each = shape.state_size(rows, size)
        return {name: np.zeros(size_of_each, np.float32) for i in self._layers for name in shape.state_names(i)}

    def step(
        self, input_ids: Array, cache_lengths: Array, states: dict[str, Array], encoded: dict[str, Array]
    ) -> tuple[Array, Array, dict[str, Array]]:
        """Return next_ids [B, Q], logits [B, Q, V] and the updated states."""
        feeds = {bundle.INPUT_IDS: input_ids, bundle.CACHE_LENGTHS: cache_lengths, **encoded, **states}
        updated = [name for i in self._layers for name in self.manifest.shape.updated_state_names(i)]
        next_ids, logits, *values = self._decoder.run([bundle.NEXT_IDS, bundle.LOGITS, *updated], feeds)
        return next_ids, logits, dict(zip(states, values, strict=True))

    def greedy(self, sources: Sequence[Sequence[int]], max_new_tokens: Sequence[int]) -> list[list[int]]:
        """Decode like `dragoman.model.search.greedy`."""
        special = self.manifest.special
        encoded = self.encode(sources)
        states = self.initial_states(len(sources), max(max_new_tokens))
        outputs: list[list[int]] = [[] for _ in sources]
        tokens = np.full((len(sources), 1), special.start, np.int64)
        running = set(range(len(sources)))
        for position in range(max(max_new_tokens)):
            lengths = np.full(len(sources), position, np.int64)
            tokens, _, states = self.step(tokens, lengths, states, encoded)
            for row in list(running):
                token = int(tokens[row, 0])
                outputs[row].append(token)
                if token == special.eos or len(outputs[row]) >= max_new_tokens[row]:
                    running.discard(row)
            if not running:
                break
        return outputs
