"""Errors of the export package.

ExportError
├── BundleError         a bundle is incomplete, damaged or of an unknown format
└── VerificationError   a bundle does not agree with the model it was made from
"""

from __future__ import annotations


class ExportError(Exception):
    """Base of everything this package raises on purpose."""


class BundleError(ExportError):
    """A bundle cannot be used."""


class VerificationError(ExportError):
    """A bundle does not agree with its model."""
