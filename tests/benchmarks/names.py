"""What the compared engines are called, and in which precisions each computes on a CPU."""

from __future__ import annotations

OURS = "Dragoman"
CTRANSLATE2 = "CTranslate2"
HUGGING_FACE = "Hugging Face"
PRECISIONS: dict[str, tuple[str, ...]] = {
    OURS: ("fp32", "int8", "int8-static", "int8-weights", "int4"),
    CTRANSLATE2: ("fp32", "int8"),
    HUGGING_FACE: ("fp32",),
}
