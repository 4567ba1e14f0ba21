"""From a bundle to engines that are ready to run: sessions, slots, search, scheduler, each graph run once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.export.errors import BundleError
from dragoman.server.budget import plan_pool
from dragoman.server.config import ServerConfig
from dragoman.server.cpus import available_cpus
from dragoman.server.device import CUDA, choose_device
from dragoman.server.engine import Engine, Event
from dragoman.server.errors import StartupError
from dragoman.server.kv_cache import CachePool
from dragoman.server.memory import available_memory
from dragoman.server.metrics import Metrics
from dragoman.server.replicas import Replicas
from dragoman.server.runtime import OnnxRuntime
from dragoman.server.scheduler import Scheduler
from dragoman.server.search import Search
from dragoman.server.serving import Model
from dragoman.server.sessions import find_problem
from dragoman.server.step import Wanted

logger = logging.getLogger(__name__)

# Of the memory, what the slot pools take at most if nobody says otherwise.
_CACHE_SHARE = 4
# More threads than that hardly make a step faster; more engines translate more texts.
_MOST_THREADS = 4
# The operators of a narrower model are so small that a second thread costs what it saves, and with so many engines
# what is left, the interpreter that they share with the service, takes as long as they do.
_WIDE, _NARROW_ENGINES = 512, 2
# Nobody who lowers `max_rows` loses beams to a second engine.
_LEAST_ROWS = 16

Deliver = Callable[[Sequence[Event]], None]


def load_model(config: ServerConfig, manifest: Manifest, metrics: Metrics, deliver: Deliver) -> Model:
    """Load the tokenizer and as many engines as the configuration wants, ready to start.

    Args:
        config: Of the server.
        manifest: Of the bundle, already checked.
        metrics: Get what the engines measure.
        deliver: Runs the engines' events on the listeners' thread.

    Raises:
        StartupError: The bundle, the device or the memory cannot be used.
    """
    chosen = choose_device(config.device, manifest, find_problem)
    replicas, threads = share_cpus(config, available_cpus(), manifest.shape.num_heads * manifest.shape.head_dim)
    if chosen.kind == CUDA and not config.replicas:
        replicas = 1  # engines on one GPU would only wait for each other
    try:
        tokenizer = bundle.load_tokenizer(Path(config.model), manifest)
        engines = [
            _load_engine(config, manifest, str(chosen), metrics, deliver, replicas=replicas, threads=threads)
            for _ in range(replicas)
        ]
        bundle.require_unchanged(Path(config.model), manifest)
    except BundleError as error:
        raise StartupError(str(error)) from error
    except MemoryError as error:
        raise StartupError(
            f"no memory for the caches of {config.max_rows} rows and for encoding {config.encode_tokens} tokens: "
            f"{error}; lower --max-rows, --cache-bytes, --encode-tokens or --replicas"
        ) from error
    engine = Replicas(engines, max_queued=config.max_queued_texts)
    metrics.watch(lambda: engine.load)
    device = engines[0].device
    metrics.describe_model(
        version=manifest.version, precision=manifest.precision, device=device, requested_device=config.device
    )
    load = engine.load
    logger.info(
        "loaded model=%s version=%s precision=%s device=%s replicas=%d threads=%d slots=%d cache_bytes=%d",
        manifest.name, manifest.version, manifest.precision, device, replicas, threads, load.slots, load.cache_bytes,
    )  # fmt: skip
    return Model(manifest, tokenizer, engine, device, config.device)


def share_cpus(config: ServerConfig, cpus: int, width: int) -> tuple[int, int]:
    """Return how many engines there are and how many threads each has; what is not configured is chosen here.

    Args:
        config: Of the server.
        cpus: That this process may use.
        width: Of the model's attention: heads x their size.
    """
    narrow = width < _WIDE
    replicas = config.replicas
    if not replicas:
        replicas = cpus // (config.threads or (1 if narrow else _MOST_THREADS))
        if narrow:
            replicas = min(replicas, _NARROW_ENGINES)
        replicas = max(1, min(replicas, config.max_rows // _LEAST_ROWS))
    return replicas, config.threads or (1 if narrow else max(1, cpus // replicas))


def _load_engine(
    config: ServerConfig,
    manifest: Manifest,
    device: str,
    metrics: Metrics,
    deliver: Deliver,
    *,
    replicas: int,
    threads: int,
) -> Engine:
    runtime = OnnxRuntime(
        Path(config.model),
        manifest,
        device=device,
        threads=threads,
        encode_tokens=config.encode_tokens,
        gpu_mem_limit=config.gpu_mem_limit,
    )
    pool = make_pool(config, runtime, replicas)
    warm_up(runtime, pool, manifest)
    return make_engine(
        runtime,
        pool,
        metrics,
        encode_tokens=config.encode_tokens,
        max_queued=config.max_queued_texts,
        deliver=deliver,
    )


def make_pool(config: ServerConfig, runtime: OnnxRuntime, replicas: int = 1) -> CachePool:
    """Allocate the slots of one of so many engines, which share the budget.

    Raises:
        StartupError: The budget is too small for one text.
    """
    manifest, memory = runtime.manifest, runtime.memory
    available = available_memory() if memory is None else memory.available()
    cache_bytes = (config.cache_bytes or available // _CACHE_SHARE) // replicas
    if memory is not None:  # a device's pool has room for one more buffer, to lay out the others anew
        cache_bytes -= cache_bytes // (2 * manifest.shape.num_decoder_layers + 1)
    size = plan_pool(
        -(-config.max_rows // replicas),
        manifest.shape,
        manifest.limits,
        runtime.slot_types,
        cache_bytes=cache_bytes,
    )
    return CachePool(size, manifest.shape, runtime.slot_types, memory)


def make_engine(
    runtime: OnnxRuntime,
    pool: CachePool,
    metrics: Metrics,
    *,
    encode_tokens: int,
    max_queued: int,
    deliver: Deliver,
) -> Engine:
    """Put an engine together for a loaded bundle."""
    manifest = runtime.manifest
    search = Search(
        pool.rows,
        manifest.limits.max_target_tokens,
        manifest.special,
        manifest.shape.vocab_size,
        candidates=runtime.candidates,
    )
    scheduler = Scheduler(encode_tokens=encode_tokens)
    return Engine(runtime, pool, search, scheduler, manifest.special, metrics, max_queued=max_queued, deliver=deliver)


def warm_up(runtime: OnnxRuntime, pool: CachePool, manifest: Manifest) -> None:
    """Run each graph once, so that the first caller does not pay for lazy initialisation.

    Raises:
        StartupError: One of them does not run.
    """
    source = [manifest.special.eos]
    kinds = [Wanted.NOTHING, Wanted.CANDIDATES if runtime.candidates else Wanted.LOGITS]
    if runtime.memory is not None:  # some CUDA libraries are loaded by the first operator that needs one
        kinds += [Wanted.LOGITS, Wanted.ALIGNMENT] if runtime.can_align else [Wanted.LOGITS]
    try:
        pool.admit(runtime.encode([source]), [len(source)], [1], manifest.special.start)
        pool.reserve()
        for wanted in kinds:
            runtime.step(pool, wanted)
    except RuntimeError as error:
        hint = "" if runtime.memory is None else "; if a library is missing: pip install 'onnxruntime-gpu[cuda,cudnn]'"
        raise StartupError(f"the graphs of {manifest.name} do not run on {runtime.device}: {error}{hint}") from error
    pool.release(0)
