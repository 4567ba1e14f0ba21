"""Errors of the corpus builder.

CorpusError
 |- UnknownPairError     the language pair is not supported
 |- UnknownSourceError   a source name is unknown, or does not exist for the pair
 |- ToolMissingError     apt-get, apt-cache or dpkg-deb is not on the machine
 |- FetchError           a download or unpacking step failed
 |- FolderBusyError      another run holds the folder
 `- EmptyCorpusError     nothing was left to write
"""

from __future__ import annotations

from dragoman.model.errors import ModelError


class CorpusError(ModelError):
    """Base of everything the corpus builder raises on purpose."""


class UnknownPairError(CorpusError):
    """Say that a language pair is not supported."""


class UnknownSourceError(CorpusError):
    """Say that a source is unknown or not available for a pair."""


class ToolMissingError(CorpusError):
    """Say that a program of the Debian packaging tools is missing."""


class FetchError(CorpusError):
    """Say that a download or unpacking step failed."""


class FolderBusyError(CorpusError):
    """Say that another run is using the folder."""


class EmptyCorpusError(CorpusError):
    """Say that a source or the whole build produced no pair."""
