"""ONNX Runtime sessions as this server opens them, each on the device that was chosen or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Before the import: the Linux wheels send usage data otherwise, and a later switch is too late.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# Grouped attention in blocks is for long prompts; steps are up to a tenth faster without. Where threads are idle, it
# also sums up a row in parts, and a row's result must not depend on how many others there are.
os.environ.setdefault("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")

import onnxruntime

from dragoman.server import cuda_memory
from dragoman.server.device import CUDA, Device
from dragoman.server.errors import StartupError

PROVIDER = "CUDAExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"
# Operators on sizes, which ONNX Runtime leaves on the CPU on purpose: a few integers, and no copy of what is large.
# `session.disable_cpu_ep_fallback` would refuse every graph that has one of them.
SIZE_OPERATORS = frozenset({"Add", "Concat", "Gather", "Range", "Shape", "Squeeze", "Sub", "Unsqueeze"})
_MOST_NAMED = 5
_SPIN_US = "100"


def find_problem(index: int) -> str | None:
    """Return why GPU `index` cannot be used and what to do about it, or None. Loads no graph, so it is quick."""
    if PROVIDER not in onnxruntime.get_available_providers():
        return f"the installed onnxruntime {onnxruntime.__version__} has no {PROVIDER}; {cuda_memory.INSTALL}"
    return cuda_memory.find_problem(index)


def session_options(threads: int) -> Any:
    """Return the options of every session."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A plan of memory would be made and kept for every combination of rows and lengths, and runs are slower with it.
    options.enable_mem_pattern = False
    options.log_severity_level = 3  # it warns of optional inputs, which are meant
    # A step is hundreds of small operators: workers that sleep between them cost a third of it. They wait awake
    # for the next operator, but not for the next step, which would take the CPU from the service's own threads.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def run_options() -> Any:
    """Return the options of every run."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = 2  # a cache that is copied is worth a warning
    # No capture of graphs, which is the default; but where nothing is said, ONNX Runtime raises and catches an error
    # in every run, which takes 65 microseconds.
    options.add_run_config_entry("gpu_graph_id", "-1")
    return options


def open_session(path: Path, device: Device, *, threads: int, gpu_mem_limit: int = 0, stream: int = 0) -> Any:
    """Load a graph.

    Args:
        path: Of the graph.
        device: Where all of it has to run.
        threads: Of an operator on the CPU.
        gpu_mem_limit: Bytes that the session may take for weights and what it computes; 0 means any number.
        stream: Handle of the CUDA stream to compute in.

    Raises:
        StartupError: It does not load, or would run elsewhere in whole or in part.
    """
    options = session_options(threads)
    providers: list[Any] = [CPU_PROVIDER]
    if device.kind == CUDA:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        providers = [(PROVIDER, cuda_options(device.index, gpu_mem_limit, stream))]
    try:
        # Without enable_fallback=0 a session that fails on the GPU is made on the CPU, with a note on stdout.
        session = onnxruntime.InferenceSession(path, options, providers, enable_fallback=0)
    except Exception as error:  # the runtime raises many types, all of them fatal here
        raise StartupError(f"ONNX Runtime cannot load {path} on {device}: {error}") from error
    if device.kind == CUDA:
        require_cuda(session, path.name)
    return session


def cuda_options(index: int, gpu_mem_limit: int, stream: int) -> dict[str, str]:
    """Return the options of the CUDA provider."""
    options = {
        "device_id": str(index),
        # By what is needed, not by powers of two: shapes recur, and what is taken is never given back.
        "arena_extend_strategy": "kSameAsRequested",
        # fp32 means fp32, or a text would depend on what shares its batch; fp16 is the precision for speed.
        "use_tf32": "0",
        # Copies of ours and the sessions' work happen in one order without waiting for each other.
        "user_compute_stream": str(stream),
    }
    if gpu_mem_limit:
        options["gpu_mem_limit"] = str(gpu_mem_limit)
    return options


def load_cuda_libraries() -> None:
    """Load CUDA and cuDNN from their Python packages where these are installed."""
    with contextlib.redirect_stdout(sys.stderr):  # it reports what is missing, and stdout is for the ready line
        onnxruntime.preload_dlls()


def require_cuda(session: Any, name: str) -> None:
    """Check that a session computes on the GPU.

    Raises:
        StartupError: It does not, or not with all operators; says why and what to do.
    """
    if PROVIDER not in session.get_providers():
        raise StartupError(
            f"ONNX Runtime {onnxruntime.__version__} cannot use the GPU and would run {name} on the CPU; its message "
            "above says why. Mostly CUDA or cuDNN libraries are missing or of another version: "
            "pip install 'onnxruntime-gpu[cuda,cudnn]'"
        )
    if elsewhere := operators_elsewhere(session):
        named = ", ".join(elsewhere[:_MOST_NAMED]) + (" ..." if len(elsewhere) > _MOST_NAMED else "")
        raise StartupError(
            f"{name} has {len(elsewhere)} operators that would run on the CPU, with copies in every step: {named}. "
            "Write the bundle again with --precision fp16 or fp32 and --device cuda, or serve it with --device cpu"
        )


def operators_elsewhere(session: Any) -> Sequence[str]:
    """Return operators that are not on the GPU, but for those on sizes."""
    return [
        f"{node.op_type} {node.name}"
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name != PROVIDER
        for node in part.get_nodes()
        if node.op_type not in SIZE_OPERATORS
    ]


def inputs_on_host(session: Any) -> frozenset[str]:
    """Return the inputs that a session wants in the host's memory, although it computes on the GPU.

    Bound anywhere else, they would be copied once, when they are bound, and never again.
    """
    places = zip(session.get_inputs(), session.get_input_memory_infos(), strict=True)
    return frozenset(value.name for value, place in places if place.name == "Cpu")
