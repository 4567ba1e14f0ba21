"""What the compared engines are called, and in which precisions each computes on a CPU."""

from __future__ import annotations

OURS = "Dragoman"
CTRANSLATE2 = "CTranslate2"
# Its OpenMP threads sleep as soon as they wait, which on virtual machines costs more than the work of a small product.
# With these variables they wait awake for a while (GNU OpenMP), as ours do; they are no default of any installation.
CTRANSLATE2_AWAKE = "CTranslate2, awake"
AWAKE = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "20000"}
HUGGING_FACE = "Hugging Face"
PRECISIONS: dict[str, tuple[str, ...]] = {
    OURS: ("fp32", "int8", "int8-static", "int8-weights", "int4"),
    CTRANSLATE2: ("fp32", "int8"),
    CTRANSLATE2_AWAKE: ("fp32", "int8"),
    HUGGING_FACE: ("fp32",),
}
