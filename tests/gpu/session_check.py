"""Opens bundles as the server does on a GPU, with the released onnxruntime-gpu, where there is no GPU.

    python tests/gpu/session_check.py BUNDLE...

Needs an environment of its own with dragoman[server-gpu] (or onnxruntime-gpu, numpy and grpcio), a C compiler and
binutils: CUDA's libraries are stand-ins that compute nothing. What is real is ONNX Runtime's choice of a place for
every operator and every input, the provider's options, and binding by address. Exits with 1 if a bundle would not be
served.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.extend(
    str(Path(__file__).parents[2] / part) for part in (".", "server", "model", "export", "clients", "protos")
)
from tests.gpu.stand_ins import run_again_with_stand_ins  # a script, not a module of a package


def main() -> None:
    """Print a line for each bundle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+")
    arguments = parser.parse_args()
    run_again_with_stand_ins()
    sys.exit(max(check(folder) for folder in arguments.bundles))


def check(folder: Path) -> int:
    """Open, encode, step; returns 1 if that fails."""
    from dragoman.export import bundle
    from dragoman.server import runtime
    from dragoman.server.budget import plan_pool
    from dragoman.server.errors import StartupError
    from dragoman.server.kv_cache import CachePool
    from tests.fakes.device import FakeMemory

    class Memory(FakeMemory):
        """The stand-ins' memory is the host's too, so addresses in it are as good as any."""

        kind = "cuda"

    setattr(runtime, "find_problem", lambda _index: None)  # noqa: B010  # of the module's, so that it is the stand-ins'
    manifest = bundle.load_manifest(folder)
    try:
        opened = runtime.OnnxRuntime(
            folder, manifest, device="cuda", threads=1, encode_tokens=512, gpu_mem_limit=1 << 30, memory=Memory()
        )
        size = plan_pool(4, manifest.shape, manifest.limits, opened.slot_types, cache_bytes=1 << 30)
        pool = CachePool(size, manifest.shape, opened.slot_types, opened.memory)
        pool.admit(opened.encode([[5, 6, manifest.special.eos]] * 2), [3, 3], [1, 1], manifest.special.start)
        pool.reserve()
        opened.step(pool)
    except (StartupError, RuntimeError) as error:
        print(f"{folder}: {error}")
        return 1
    states = opened.slot_types.states.name
    print(f"{folder}: {manifest.precision}, states of {states}, a step of {pool.live} rows ran on {opened.device}")
    return 0


if __name__ == "__main__":
    main()
