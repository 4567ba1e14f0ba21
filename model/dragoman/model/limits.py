"""How long a translation may become by default. Standard library only.

One rule for the reference search, verification and the server, so that all of them measure the same
thing.
"""

from __future__ import annotations

LENGTH_RATIO = 2.0
LENGTH_MARGIN = 16


def default_max_new_tokens(
    source_tokens: int, max_target_tokens: int, *, ratio: float = LENGTH_RATIO, margin: int = LENGTH_MARGIN
) -> int:
    """Return the limit on target tokens for a source of `source_tokens` tokens, EOS included.

    It stops a looping row early and leaves real translations alone.
    """
    return min(max_target_tokens, int(source_tokens * ratio) + margin)
