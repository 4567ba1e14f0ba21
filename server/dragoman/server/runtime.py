"""The two graphs on ONNX Runtime: encode a batch, run a decode step over the slot pool."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

# Before the import: the Linux wheels send usage data otherwise, and a later switch is too late.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.server.errors import StartupError
from dragoman.server.kv_cache import CachePool
from dragoman.server.layer_states import Array

_MAX_BINDINGS = 1024


class Runtime(Protocol):
    """What the engine needs of a device; tests pass a fake."""

    def encode(self, sources: Sequence[Sequence[int]]) -> list[Array]:
        """Return cross-attention key, value, ... [B, H, S, D] in layer order."""

    def step(self, pool: CachePool) -> NDArray[np.int64]:
        """Run one decode step over the live rows; returns next ids [live]. The pool's `append` ends it."""


class OnnxRuntime:
    """Sessions of one bundle on the CPU.

    Attributes:
        manifest: Of the bundle.
        device: What the sessions really run on.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, device: str, threads: int, encode_tokens: int) -> None:
        """Load both graphs.

        Args:
            folder: The bundle.
            manifest: Its manifest, already checked.
            device: "auto" or "cpu".
            threads: Of each session's operators.
            encode_tokens: Largest encode batch, rows x longest source; sizes the staging buffers.

        Raises:
            StartupError: The device cannot run this bundle, or a graph does not load.
        """
        self.manifest = manifest
        self.device = choose_device(device, manifest)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # it warns of optional inputs, which are meant
        # Spinning workers would take the CPU from the service's own threads between two steps.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._encoder, self._decoder = (
                onnxruntime.InferenceSession(folder / name, options, ["CPUExecutionProvider"])
                for name in (bundle.ENCODER, bundle.DECODER)
            )
        except Exception as error:  # the runtime raises many types, all of them fatal here
            raise StartupError(f"ONNX Runtime cannot load {folder}: {error}") from error
        layers = range(manifest.shape.num_decoder_layers)
        self._cross_names = [name for i in layers for name in bundle.cross_names(i)]
        self._state_names = [name for i in layers for name in manifest.shape.state_names(i)]
        self._updated_names = [name for i in layers for name in manifest.shape.updated_state_names(i)]
        tokens = max(encode_tokens, manifest.limits.max_source_tokens)
        width = manifest.shape.num_heads * manifest.shape.head_dim
        self._staging = [np.zeros(tokens * width, np.float32) for _ in self._cross_names]
        self._encode_ids = np.zeros(tokens, np.int64)
        self._run_options = onnxruntime.RunOptions()
        self._run_options.log_severity_level = 2  # a cache that is copied is worth a warning
        self._bindings: dict[tuple[int, int, int, int], Any] = {}
        self._next_ids = np.zeros(0, np.int64)

    def encode(self, sources: Sequence[Sequence[int]]) -> list[Array]:
        """Encode a batch into the staging buffers; the result is valid until the next call.

        Args:
            sources: Token ids, EOS last.

        Returns:
            Key, value, ... [B, H, S, D] in layer order.
        """
        shape = self.manifest.shape
        lengths = np.array([len(source) for source in sources], np.int64)
        size = (len(sources), int(lengths.max()))
        ids = self._encode_ids[: size[0] * size[1]].reshape(size)
        ids.fill(self.manifest.special.pad)
        for row, source in enumerate(sources):
            ids[row, : len(source)] = source
        outputs = [
            staging[: ids.size * shape.num_heads * shape.head_dim].reshape(
                size[0], shape.num_heads, size[1], shape.head_dim
            )
            for staging in self._staging
        ]
        binding = self._encoder.io_binding()
        _bind(binding.bind_input, bundle.INPUT_IDS, ids)
        _bind(binding.bind_input, bundle.SOURCE_LENGTHS, lengths)
        for name, output in zip(self._cross_names, outputs, strict=True):
            _bind(binding.bind_output, name, output)
        self._encoder.run_with_iobinding(binding, self._run_options)
        return outputs

    def step(self, pool: CachePool) -> NDArray[np.int64]:
        """Run one decode step: it reads and writes the pool's states where they lie."""
        if self._next_ids.size < pool.rows:
            self._next_ids = np.zeros(pool.rows, np.int64)
            self._bindings.clear()
        key = (id(pool), pool.live, pool.states.size, pool.cross_attention.size)
        binding = self._bindings.get(key)
        if binding is None:
            if len(self._bindings) >= _MAX_BINDINGS:
                self._bindings.clear()
            binding = self._bindings[key] = self._bind_step(pool)
        self._decoder.run_with_iobinding(binding, self._run_options)
        return self._next_ids[: pool.live]

    def _bind_step(self, pool: CachePool) -> Any:
        """Bind a prefix of every buffer: addresses are fixed, so a binding can be used again."""
        live = pool.live
        binding = self._decoder.io_binding()
        _bind(binding.bind_input, bundle.INPUT_IDS, pool.input_ids[:live])
        _bind(binding.bind_input, bundle.SOURCE_LENGTHS, pool.source_lengths[:live])
        _bind(binding.bind_input, bundle.CACHE_LENGTHS, pool.cache_lengths[:live])
        _bind(binding.bind_output, bundle.NEXT_IDS, self._next_ids[:live, None])
        for name, view in zip(self._cross_names, pool.cross_attention.views(), strict=True):
            _bind(binding.bind_input, name, view[:live])
        for name, view in zip(self._state_names, pool.states.views(), strict=True):
            _bind(binding.bind_input, name, view[:live])
        # Caches are written where they are read, cells elsewhere: the pool's states know.
        for name, view in zip(self._updated_names, pool.states.updated_views(), strict=True):
            _bind(binding.bind_output, name, view[:live])
        return binding


def choose_device(device: str, manifest: Manifest) -> str:
    """Return the device to use.

    Raises:
        StartupError: It cannot run this bundle; says why and what to do.
    """
    if device not in ("auto", "cpu"):
        raise StartupError(f"device is {device!r}; this version runs on 'cpu' ('auto' chooses it)")
    if "cpu" not in manifest.devices:
        raise StartupError(
            f"the bundle {manifest.name} ({manifest.precision}) is meant for {list(manifest.devices)}, "
            "not for the CPU; export it again with --precision fp32 or int8"
        )
    return "cpu"


def _bind(bind: Any, name: str, array: Array) -> None:
    """Bind memory of ours without a copy; `array` must be contiguous."""
    bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
