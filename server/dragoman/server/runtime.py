"""The two graphs on ONNX Runtime: encode a batch, run a decode step over the slot pool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.server.cuda_memory import CudaError, CudaMemory
from dragoman.server.device import CUDA, Device, choose_device
from dragoman.server.device_memory import DeviceArray, Memory, Mirror, Tensor, empty
from dragoman.server.encoded import Encoded
from dragoman.server.errors import StartupError
from dragoman.server.kv_cache import CachePool
from dragoman.server.sessions import find_problem, inputs_on_host, load_cuda_libraries, open_session, run_options
from dragoman.server.slot_types import SlotTypes, last_size
from dragoman.server.step import StepOutputs, Wanted

# Each takes 8 to 30 KB, and 130 microseconds to prepare.
_MAX_STEPS = 256
_NUMPY: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int8)": np.dtype(np.int8),
}
_RESULT_TYPES = {bundle.NEXT_IDS: np.int64, bundle.CANDIDATE_IDS: np.int64}


class Runtime(Protocol):
    """What the engine needs of a device; tests pass a fake.

    Attributes:
        device: What it computes on.
        candidates: K of a step's candidates; 0 if it returns none.
        can_align: Whether steps can return attention to the source.
    """

    device: str
    candidates: int
    can_align: bool

    def encode(self, sources: Sequence[Sequence[int]]) -> Encoded:
        """Return keys and values of sources for the decoder's layers."""

    def step(self, pool: CachePool, wanted: Wanted = Wanted.NOTHING) -> StepOutputs:
        """Run one decode step over the live rows. The pool's `append` ends it."""


@dataclass(frozen=True, slots=True)
class _PreparedStep:
    """What is the same in every step over so many rows with so long views.

    Attributes:
        binding: Of the decoder's inputs and outputs.
        results: Where it writes, and how many numbers.
        outputs: Views of these.
    """

    binding: Any
    results: list[tuple[Mirror, int]]
    outputs: StepOutputs


class OnnxRuntime:
    """Sessions of one bundle, on the CPU or on a GPU.

    Attributes:
        manifest: Of the bundle.
        device: What the sessions really run on.
        memory: Where they keep their tensors; None means in the host's, as NumPy arrays.
        candidates: K of a step's candidates; 0 if the bundle is too old to have any.
        can_align: Whether steps can return attention to the source.
        slot_types: Of the numbers in keys, values and cells.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        *,
        device: str,
        threads: int,
        encode_tokens: int,
        gpu_mem_limit: int = 0,
        memory: Memory | None = None,
    ) -> None:
        """Load both graphs.

        Args:
            folder: The bundle.
            manifest: Its manifest, already checked.
            device: "auto", "cpu", "cuda" or "cuda:N".
            threads: Of each session's operators.
            encode_tokens: Largest encode batch, rows x longest source; sizes the staging buffers.
            gpu_mem_limit: Bytes that each graph may take on a GPU, besides the pool; 0 means any number.
            memory: Where to keep tensors in place of the device's own memory.

        Raises:
            StartupError: The device cannot run this bundle, or a graph does not load.
            MemoryError: The buffers do not fit.
        """
        self.manifest = manifest
        chosen = choose_device(device, manifest, find_problem)
        self.device = str(chosen)
        self.memory = memory or device_memory(chosen)
        stream = self.memory.stream if self.memory is not None else 0
        self._encoder, self._decoder = (
            open_session(folder / name, chosen, threads=threads, gpu_mem_limit=gpu_mem_limit, stream=stream)
            for name in (bundle.ENCODER, bundle.DECODER)
        )
        layers = range(manifest.shape.num_decoder_layers)
        self._cross_names = [name for i in layers for name in bundle.cross_names(i)]
        self._state_names = [name for i in layers for name in manifest.shape.state_names(i)]
        self._updated_names = [name for i in layers for name in manifest.shape.updated_state_names(i)]
        # Small inputs that a graph wants here although it computes on a GPU.
        self._encoder_here, self._decoder_here = (
            inputs_on_host(session) if chosen.kind == CUDA else frozenset[str]()
            for session in (self._encoder, self._decoder)
        )
        large = [*self._cross_names, bundle.CROSS_LAST, *self._state_names]
        if misplaced := self._decoder_here.intersection(large):
            raise StartupError(
                f"{folder}: the decoder wants {sorted(misplaced)} on the CPU; write it again with --device cuda"
            )
        self._describe_decoder(folder)
        self._allocate(max(encode_tokens, manifest.limits.max_source_tokens))
        self._run_options = run_options()
        self._steps: dict[tuple[int, int, int, int, int], _PreparedStep] = {}

    def _describe_decoder(self, folder: Path) -> None:
        """Learn from the graph what its bundle's manifest does not say.

        Raises:
            StartupError: Its states are of a type that this version does not know.
        """
        inputs: dict[str, str] = {value.name: value.type for value in self._decoder.get_inputs()}
        outputs = {output.name: output for output in self._decoder.get_outputs()}
        cross, states = inputs[self._cross_names[0]], inputs[self._state_names[0]]
        if unknown := {cross, states} - _NUMPY.keys():
            raise StartupError(
                f"{folder}: the decoder keeps numbers of type {', '.join(sorted(unknown))}; this version knows "
                f"{', '.join(_NUMPY)}. Serve it with the version of Dragoman that wrote it, or export it again"
            )
        self.slot_types = SlotTypes(_NUMPY[cross], _NUMPY[states], bundle.CROSS_LAST in inputs)
        self.candidates = int(outputs[bundle.CANDIDATE_IDS].shape[2]) if bundle.CANDIDATE_IDS in outputs else 0
        self.can_align = bundle.ALIGNMENT in outputs
        self._has_normalizer = bundle.LOG_NORMALIZER in outputs
        layers = range(self.manifest.shape.num_decoder_layers)
        names = [name for i in layers for name in bundle.updated_cross_names(i)]
        self._updated_cross_names = names if names[0] in outputs else []

    def _allocate(self, tokens: int) -> None:
        """Make room for an encode batch of so many tokens; for results, the first step that wants them does."""
        width = self.manifest.shape.num_heads * self.manifest.shape.head_dim
        self._staging = [empty(self.memory, (tokens * width,), self.slot_types.cross) for _ in self._cross_names]
        self._last_staging: Tensor = None
        if self.slot_types.cross_last:
            # A source has one token or more. On the host, what no batch has reached yet takes no memory.
            self._last_staging = empty(self.memory, (tokens, *last_size(self.manifest.shape)), np.float32)
        self._encode_ids, self._encode_lengths = (Mirror(self.memory, (tokens,), np.int64) for _ in range(2))
        self._on, self._off = np.ones(1, np.bool_), np.zeros(1, np.bool_)
        self._results: dict[str, Mirror] = {}

    def encode(self, sources: Sequence[Sequence[int]]) -> Encoded:
        """Encode a batch into the staging buffers; the result is valid until the next call.

        Args:
            sources: Token ids, EOS last.
        """
        shape = self.manifest.shape
        rows, longest = len(sources), max(map(len, sources))
        ids = self._encode_ids.host[: rows * longest].reshape(rows, longest)
        ids.fill(self.manifest.special.pad)
        for row, source in enumerate(sources):
            ids[row, : len(source)] = source
            self._encode_lengths.host[row] = len(source)
        outputs = [
            staging[: ids.size * shape.num_heads * shape.head_dim].reshape(
                rows, shape.num_heads, longest, shape.head_dim
            )
            for staging in self._staging
        ]
        binding = self._encoder.io_binding()
        for name, mirror, size in (
            (bundle.INPUT_IDS, self._encode_ids, (rows, longest)),
            (bundle.SOURCE_LENGTHS, self._encode_lengths, (rows,)),
        ):
            mirror.push(math.prod(size))
            tensor = mirror.host if name in self._encoder_here else mirror.tensor
            _bind(binding.bind_input, name, tensor[: math.prod(size)].reshape(*size))
        for name, output in zip(self._cross_names, outputs, strict=True):
            _bind(binding.bind_output, name, output)
        last = None
        if self._last_staging is not None:
            last = self._last_staging[:rows]
            _bind(binding.bind_output, bundle.CROSS_LAST, last)
        self._encoder.run_with_iobinding(binding, self._run_options)
        return Encoded(outputs, last)

    def step(self, pool: CachePool, wanted: Wanted = Wanted.NOTHING) -> StepOutputs:
        """Run one decode step: it reads and writes the pool's states where they lie."""
        live, source = pool.live, pool.cross_attention.size
        key = (id(pool), live, pool.states.size, source, wanted.value)
        step = self._steps.get(key)
        if step is None:
            if len(self._steps) >= _MAX_STEPS:
                self._steps.pop(next(iter(self._steps)))  # the oldest
            step = self._steps[key] = self._prepare(pool, wanted)
        pool.show_counters()
        self._decoder.run_with_iobinding(step.binding, self._run_options)
        for mirror, count in step.results:
            mirror.pull(count)
        return step.outputs

    def _prepare(self, pool: CachePool, wanted: Wanted) -> _PreparedStep:
        """Bind a prefix of every buffer: addresses are fixed, so all of it can be used again."""
        live = pool.live
        binding = self._decoder.io_binding()
        here = {
            bundle.INPUT_IDS: pool.input_ids,
            bundle.CACHE_LENGTHS: pool.cache_lengths,
            bundle.SOURCE_LENGTHS: pool.source_lengths,
        }
        for name, counter in pool.counters().items():
            _bind(binding.bind_input, name, (here[name] if name in self._decoder_here else counter)[:live])
        for name, view in zip(self._cross_names, pool.cross_attention.views(), strict=True):
            _bind(binding.bind_input, name, view[:live])
        # Some graphs write there, nothing but what stands there.
        for name, view in zip(self._updated_cross_names, pool.cross_attention.views(), strict=False):
            _bind(binding.bind_output, name, view[:live])
        if pool.cross_last is not None:
            _bind(binding.bind_input, bundle.CROSS_LAST, pool.cross_last.tensor[:live])
        for name, view in zip(self._state_names, pool.states.views(), strict=True):
            _bind(binding.bind_input, name, view[:live])
        # Caches are written where they are read, cells elsewhere: the pool's states know.
        for name, view in zip(self._updated_names, pool.states.updated_views(), strict=True):
            _bind(binding.bind_output, name, view[:live])
        if self.candidates:
            _bind(binding.bind_input, bundle.WITH_CANDIDATES, self._on if Wanted.CANDIDATES in wanted else self._off)
        if self.can_align:
            _bind(binding.bind_input, bundle.WITH_ALIGNMENT, self._on if Wanted.ALIGNMENT in wanted else self._off)
        results, outputs = [], {}
        for name in self._wanted_names(wanted):
            mirror, size = self._result(name, pool)
            count = math.prod(size)
            _bind(binding.bind_output, name, mirror.tensor[:count].reshape(*size))
            results.append((mirror, count))
            outputs[name] = mirror.host[:count].reshape(size)[:, 0]
        return _PreparedStep(binding, results, StepOutputs(**outputs))

    def _wanted_names(self, wanted: Wanted) -> list[str]:
        """Return outputs of the decoder, which are fields of `StepOutputs` too."""
        names = [bundle.NEXT_IDS]
        if Wanted.CANDIDATES in wanted:
            names += [bundle.CANDIDATE_IDS, bundle.CANDIDATE_SCORES]
            names += [bundle.LOG_NORMALIZER] if self._has_normalizer else []
        # On the CPU the graph has them anyway and they cost an address; from a GPU they would have to be copied.
        if Wanted.LOGITS in wanted or self.memory is None:
            names.append(bundle.LOGITS)
        if Wanted.ALIGNMENT in wanted:
            names.append(bundle.ALIGNMENT)
        return names

    def _result(self, name: str, pool: CachePool) -> tuple[Mirror, tuple[int, ...]]:
        """Return where a step writes an output, and its size over the live rows: [live, 1] or [live, 1, n]."""
        width = {
            bundle.CANDIDATE_IDS: self.candidates,
            bundle.CANDIDATE_SCORES: self.candidates,
            bundle.LOGITS: self.manifest.shape.vocab_size,
            bundle.ALIGNMENT: pool.cross_attention.size,
        }.get(name)
        mirror = self._results.get(name)
        if mirror is None:
            most = self.manifest.limits.max_source_tokens if name == bundle.ALIGNMENT else width or 1
            dtype = _RESULT_TYPES.get(name, np.float32)
            mirror = self._results[name] = Mirror(self.memory, (pool.rows * most,), dtype)
        return mirror, (pool.live, 1) if width is None else (pool.live, 1, width)


def device_memory(device: Device) -> Memory | None:
    """Return a device's memory, or None for the host's.

    Raises:
        StartupError: The GPU does not work.
    """
    if device.kind != CUDA:
        return None
    load_cuda_libraries()
    try:
        return CudaMemory(device.index)
    except (CudaError, MemoryError) as error:
        raise StartupError(f"{device} cannot be used: {error}; see what nvidia-smi says") from error


def _bind(bind: Any, name: str, tensor: Tensor) -> None:
    """Bind memory of ours without a copy; it must be contiguous."""
    if isinstance(tensor, DeviceArray):
        bind(name, tensor.memory.kind, tensor.memory.index, tensor.dtype, tensor.shape, tensor.pointer)
    else:
        bind(name, "cpu", 0, tensor.dtype, tensor.shape, tensor.ctypes.data)
