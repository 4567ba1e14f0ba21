"""Errors of the evaluation package."""

from __future__ import annotations


class EvaluationError(Exception):
    """Say why nothing was evaluated, where no other package's error does."""
