"""A bundle as a system: ONNX Runtime, export's reference loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dragoman.evaluation.system import System
from dragoman.export import bundle
from dragoman.export.decode import BundleSession
from dragoman.export.errors import BundleError
from dragoman.model.samples import Output
from dragoman.model.translate import choose_languages, translate_all


def bundle_system(
    folder: Path, *, rows: int, source_language: str = "", target_language: str = "", threads: int = 0
) -> System:
    """Load a bundle.

    Args:
        folder: Of the bundle.
        rows: Texts per batch.
        source_language: BCP-47 tag; "" for the bundle's default.
        target_language: Likewise.
        threads: Of the CPU; 0 takes all.

    Raises:
        BundleError: It is incomplete or damaged, or does not load.
        ConfigError: It has no such language, or several and none was chosen.
    """
    try:
        session = BundleSession(folder, threads=threads)
        tokenizer = bundle.load_tokenizer(folder, session.manifest)
    except BundleError:
        raise
    except Exception as error:  # ONNX Runtime and SentencePiece raise many types
        raise BundleError(f"{folder} does not load: {error}") from error
    manifest, limits = session.manifest, session.manifest.limits
    default = manifest.source_language, manifest.target_language
    pair = choose_languages(manifest.languages, default, source_language, target_language)
    first = manifest.languages.first_target(pair[1])

    def translate(sources: Sequence[str]) -> list[Output]:
        return translate_all(
            partial(session.greedy, first=first),
            tokenizer,
            sources,
            max_source_tokens=limits.max_source_tokens,
            max_new_tokens=lambda n: min(limits.max_target_tokens - len(first), limits.default_max_new_tokens(n)),
            frame=lambda ids: manifest.languages.frame(ids, *pair),
            rows=rows,
        )

    return System(f"bundle {folder}: {manifest.name} {manifest.precision} version {manifest.version}", translate, pair)
