"""Errors of the model package.

ModelError
├── ConfigError       a setting is wrong; the message names it and what is allowed
├── DataError         a corpus file cannot be used; names file and line
├── CheckpointError   a checkpoint is missing, incomplete or of another model
├── TrainingError     training cannot go on (loss not finite, no data fits)
└── ImportFailed      a checkpoint of another library cannot be read as a model of ours
"""

from __future__ import annotations


class ModelError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigError(ModelError):
    """A setting is wrong."""


class DataError(ModelError):
    """A corpus file cannot be used."""


class CheckpointError(ModelError):
    """A checkpoint cannot be used."""


class TrainingError(ModelError):
    """Training cannot go on."""


class ImportFailed(ModelError):
    """A checkpoint of another library cannot be imported."""
