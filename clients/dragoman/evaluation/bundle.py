"""A bundle as a system: ONNX Runtime, export's reference loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.evaluation.system import System
from dragoman.export import bundle
from dragoman.export.decode import BundleSession
from dragoman.export.errors import BundleError
from dragoman.model.samples import Output
from dragoman.model.translate import translate_all


def bundle_system(folder: Path, *, rows: int) -> System:
    """Load a bundle.

    Args:
        folder: Of the bundle.
        rows: Texts per batch.

    Raises:
        BundleError: It is incomplete or damaged, or does not load.
    """
    try:
        session = BundleSession(folder)
        tokenizer = bundle.load_tokenizer(folder, session.manifest)
    except BundleError:
        raise
    except Exception as error:  # ONNX Runtime and SentencePiece raise many types
        raise BundleError(f"{folder} does not load: {error}") from error
    manifest = session.manifest

    def translate(sources: Sequence[str]) -> list[Output]:
        return translate_all(
            session.greedy,
            tokenizer,
            sources,
            max_source_tokens=manifest.limits.max_source_tokens,
            max_new_tokens=manifest.limits.default_max_new_tokens,
            rows=rows,
        )

    return System(f"bundle {folder}: {manifest.name} {manifest.precision} version {manifest.version}", translate)
