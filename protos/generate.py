"""Regenerate the gRPC code from the .proto files: `python protos/generate.py [OUT]`.

Pinned to grpcio-tools 1.73.1: generated code must not be newer than the protobuf runtime of a
customer, and this release's code loads on protobuf 6.31 up to 7.x. `make proto` runs it in an
environment of its own; `tests/contract/test_generated_protos.py` compares the result with git.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent


def generate(out: Path) -> None:
    """Write *_pb2.py, *_pb2_grpc.py and their stubs below `out`.

    Raises:
        SystemExit: protoc reported an error.
    """
    protos = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("dragoman/v1/*.proto"))
    arguments = [
        "protoc",
        f"-I{ROOT}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out={out}",
        f"--mypy_grpc_out={out}",
        *protos,
    ]
    if protoc.main(arguments):
        raise SystemExit("protoc failed")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
