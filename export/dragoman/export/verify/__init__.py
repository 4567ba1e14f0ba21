"""Compares a bundle with the model it was made from, and refuses it if they differ."""

from dragoman.export.verify.gate import SENTENCES, first_languages, require, verify
from dragoman.export.verify.report import Report
from dragoman.export.verify.requirements import requirement

__all__ = ["SENTENCES", "Report", "first_languages", "require", "requirement", "verify"]
