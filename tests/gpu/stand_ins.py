"""Stand-ins for the CUDA libraries, so that onnxruntime-gpu says what it would do on a machine without a GPU.

The CUDA provider of the released wheel is loaded for real: which kernels it has and on which device it places
the nodes of a graph do not depend on a GPU. It only has to find libraries to link to. Those made here have every
function it asks for; nearly all of them do nothing and report success. Nothing can be computed with them.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_MARK = "DRAGOMAN_CUDA_STAND_INS"
_ALLOCATE = "void *malloc(unsigned long); int {name}(void **p, unsigned long n{more}) {{ *p = malloc(n); return 0; }}"
_COPY = (
    "void *memcpy(void *, const void *, unsigned long);"
    "int {name}(void *to, const void *from, unsigned long n) {{ memcpy(to, from, n); return 0; }}"
)
# Offsets in cudaDeviceProp: memory, shared memory, registers, warp, threads, grid, compute capability.
_PROPERTIES = {
    288: (8, 1 << 35),
    296: (8, 49152),
    304: (4, 65536),
    308: (4, 32),
    320: (4, 1024),
    324: (4, 1024),
    328: (4, 1024),
    332: (4, 64),
    336: (4, 2147483647),
    340: (4, 65535),
    344: (4, 65535),
    360: (4, 9),
}
_SPECIAL = {
    "cudaGetDeviceCount": "int cudaGetDeviceCount(int *n) { *n = 1; return 0; }",
    "cudaGetDevice": "int cudaGetDevice(int *n) { *n = 0; return 0; }",
    "cudaMemGetInfo": "int cudaMemGetInfo(unsigned long *f, unsigned long *t) { *f = *t = 1ul << 34; return 0; }",
    "cudaDriverGetVersion": "int cudaDriverGetVersion(int *n) { *n = 13000; return 0; }",
    "cudaRuntimeGetVersion": "int cudaRuntimeGetVersion(int *n) { *n = 13000; return 0; }",
    "cudaGetErrorString": 'const char *cudaGetErrorString(int n) { return "no GPU"; }',
    "cudaGetErrorName": 'const char *cudaGetErrorName(int n) { return "no GPU"; }',
    "cudaGetDeviceProperties": "void *memset(void *, int, unsigned long);"
    "int cudaGetDeviceProperties(char *p, int device) { memset(p, 0, 900);"
    + "".join(f" *({'long' if n == 8 else 'int'} *)(p + {at}) = {value};" for at, (n, value) in _PROPERTIES.items())
    + " return 0; }",
    **{name: _ALLOCATE.format(name=name, more="") for name in ("cudaMalloc", "cudaMallocAsync", "cudaMallocHost")},
    "cudaHostAlloc": _ALLOCATE.format(name="cudaHostAlloc", more=", unsigned flags"),
    **{name: _COPY.format(name=name) for name in ("cudaMemcpy", "cudaMemcpyAsync")},
}


def run_again_with_stand_ins() -> None:
    """Start this program again where the CUDA provider finds stand-ins; returns in the new process.

    Raises:
        SystemExit: onnxruntime-gpu, a C compiler or the tools that read libraries are missing.
    """
    if _MARK in os.environ:
        atexit.register(shutil.rmtree, os.environ[_MARK], ignore_errors=True)
        return
    spec = importlib.util.find_spec("onnxruntime")
    providers = (
        [*Path(spec.origin).parent.glob("capi/libonnxruntime_providers_[ct]*.so")] if spec and spec.origin else []
    )
    if not any("cuda" in path.name for path in providers):
        sys.exit("this environment has no onnxruntime-gpu; make one: pip install onnxruntime-gpu")
    folder = Path(tempfile.mkdtemp(prefix="cuda-stand-ins-"))
    try:
        for library, names in _wanted(providers).items():
            _build(folder, library, names)
    except FileNotFoundError as error:
        sys.exit(f"{error.filename} is needed to make the stand-ins: apt-get install gcc binutils")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    environment = {**os.environ, "LD_LIBRARY_PATH": path, _MARK: str(folder), "ORT_DISABLE_TELEMETRY": "1"}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)  # noqa: S606  # the same program


def _wanted(providers: list[Path]) -> dict[str, set[str]]:
    """Return the names that the providers ask of each NVIDIA library; without versions, any of them will do."""
    dynamic = "".join(_output("readelf", "-d", path) for path in providers)
    wanted: dict[str, set[str]] = {name: set() for name in re.findall(r"\[(lib(?:cu|nv)[^\]]*)\]", dynamic)}
    anywhere = set()
    for line in "".join(_output("nm", "-D", "--undefined-only", path) for path in providers).splitlines():
        name, _, version = line.split()[-1].partition("@")
        if version.lstrip("@") in wanted:
            wanted[version.lstrip("@")].add(name)
        elif not version and re.match(r"cu|create\w*_INTERNAL|getInferLibVersion|getPluginRegistry", name):
            anywhere.add(name)
    return {library: names or anywhere for library, names in wanted.items()}


def _build(folder: Path, library: str, names: set[str]) -> None:
    source, versions = folder / f"{library}.c", folder / f"{library}.map"
    source.write_text("\n".join(_SPECIAL.get(name, f"long {name}(void) {{ return 0; }}") for name in sorted(names)))
    # Names without a version find versioned ones too, but not the other way round.
    versions.write_text(f"{library} {{ global: *; }};\n")
    command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}"]
    command += [f"-Wl,--version-script={versions}", "-o", str(folder / library), str(source)]
    subprocess.run(command, check=True)


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
