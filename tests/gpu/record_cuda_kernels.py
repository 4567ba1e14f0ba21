"""Records which kernels the CUDA provider of the installed onnxruntime-gpu has, and where it would run a graph.

    python tests/gpu/record_cuda_kernels.py --out export/dragoman/export/cuda_kernels.json
    python tests/gpu/record_cuda_kernels.py --place BUNDLE/encoder.onnx BUNDLE/decoder.onnx

Needs an environment of its own with onnxruntime-gpu and nothing else of ours; a GPU is not needed. Kernels of
operator sets that no graph of ours can ask for are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.gpu.stand_ins import run_again_with_stand_ins  # a script, not a module of a package

_PROVIDER = "CUDAExecutionProvider"
_OPSET = 24


def main() -> None:
    """Record, or place graphs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--place", type=Path, nargs="+", default=[], help="graphs")
    arguments = parser.parse_args()
    run_again_with_stand_ins()
    if arguments.out:
        record(arguments.out)
    for path in arguments.place:
        print(f"{path}: {placement(path)}")


def record(out: Path) -> None:
    """Write all kernels: domain -> operator -> [[first version, last version or null, {constraint: types}], ...]."""
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    found: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for kernel in get_all_opkernel_def():
        first, last = kernel.version_range
        if kernel.provider != _PROVIDER or (kernel.domain == "" and not first <= _OPSET <= last):
            continue
        types = {
            key: sorted(re.findall(r"^tensor\((\w+)\)$", "\n".join(kinds), re.M))
            for key, kinds in kernel.type_constraints.items()
        }
        found[kernel.domain][kernel.op_name].append([first, None if last >= 1 << 30 else last, types])
    lines = []
    for domain in sorted(found):
        rows = [f"      {json.dumps(name)}: {json.dumps(found[domain][name])}" for name in sorted(found[domain])]
        lines.append(f"    {json.dumps(domain)}: {{\n" + ",\n".join(rows) + "\n    }")
    head = f'{{\n  "onnxruntime-gpu": "{onnxruntime.__version__}",\n  "opset": {_OPSET},\n  "kernels": {{\n'
    out.write_text(head + ",\n".join(lines) + "\n  }\n}\n")
    print(f"{out}: {sum(len(rows) for ops in found.values() for rows in ops.values())} kernels")


def placement(path: Path) -> str:
    """Return how many nodes ONNX Runtime puts on the GPU, which ones not, and which copies it adds."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 0
    options.log_verbosity_level = 1
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)  # the runtime writes its log there
        try:
            onnxruntime.InferenceSession(path, options, [_PROVIDER])
        finally:
            os.dup2(kept, 2)
        log.seek(0)
        text = log.read().decode(errors="replace")
    lines = re.findall(r"VerifyEachNodeIsAssignedToAnEp\]\s*(.*)", text)
    provider, elsewhere, count = _PROVIDER, [], 0
    for line in lines:
        if every := re.search(r"All nodes placed on \[(\w+)\]. Number of nodes: (\d+)", line):
            provider, count = every[1], int(every[2])
        elif placed := re.search(r"placed on \[(\w+)\]", line):
            provider = placed[1]
        elif node := re.match(r"(\w+) \((.*)\)", line):
            count += provider == _PROVIDER
            if provider != _PROVIDER:
                elsewhere.append(f"{node[1]} {node[2]}")
    copies = re.findall(r"AddCopyNode\] Add (Memcpy\w+ \w+ \S+)", text)
    return f"{count} nodes on {_PROVIDER}; elsewhere: {elsewhere or 'none'}; copies: {copies or 'none'}"


if __name__ == "__main__":
    main()
