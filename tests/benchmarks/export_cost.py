"""Time and memory of `dragoman export` for a large model with random weights.

    python tests/benchmarks/export_cost.py                        # transformer-big, 32,000 words, fp32 and int8
    python tests/benchmarks/export_cost.py --preset base-12-1 --precisions fp32

The command runs as a user would run it, in a process of its own. Memory is the largest resident set of that
process, less the weights; what importing torch takes is part of it. The export is timed without the comparison of
texts and with it, because random weights never say EOS: every text runs to its limit, which is the longest that
verification can take.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from dragoman.export.verify.requirements import requirement
from dragoman.model.checkpoint import save_checkpoint
from dragoman.model.config import ModelConfig
from dragoman.model.presets import PRESETS
from dragoman.model.tokenizers import SymbolSide, SymbolTokenizer
from dragoman.model.transformer import Transformer, count_parameters
from dragoman.model.vocab import SPECIAL_IDS

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
SENTENCES = 20


def main() -> None:
    """Print one line per precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="transformer-big")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "int8"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = save_model(folder / "run", arguments.preset, arguments.vocabulary)
        pairs = folder / "pairs.tsv"
        pairs.write_text("".join(f"w{i} w{i + 1} w{i + 2}\tw{i} w{i + 1}\n" for i in range(SENTENCES)), "utf-8")
        print(f"{arguments.preset}, {weights / 1e9:.2f} GB of weights")
        for precision in arguments.precisions:
            report(folder, pairs, precision, weights)


def save_model(run: Path, preset: str, vocabulary: int) -> int:
    """Write a checkpoint with random weights; returns their bytes."""
    torch.manual_seed(1)
    model = Transformer(ModelConfig(vocab_size=vocabulary, **PRESETS[preset]))
    words = (*SPECIAL, *(f"w{i}" for i in range(vocabulary - len(SPECIAL))))
    side = SymbolSide(words, "words", unk=SPECIAL_IDS.unk, after=(SPECIAL_IDS.eos,))
    save_checkpoint(run, model, SymbolTokenizer(side, SPECIAL_IDS), languages=("en", "de"), step=1)
    return 4 * count_parameters(model)


def report(folder: Path, pairs: Path, precision: str, weights: int) -> None:
    """Export twice, without and with verification, and print what it took."""
    command = [
        sys.executable, "-m", "dragoman.cli.main", "export", "--checkpoint", str(folder / "run"),
        "--precision", precision, "--name", "large",
    ]  # fmt: skip
    verified = [*command, "--out", str(folder / f"{precision}-verified"), "--sentences", str(SENTENCES)]
    if requirement(precision).needs_references:
        verified += ["--data", str(pairs)]
    for title, call in (
        ("without verification", [*command, "--out", str(folder / precision), "--no-verify"]),
        (f"with {SENTENCES} texts", verified),
    ):
        seconds, peak, code = measured(call)
        ended = "" if code == 0 else f", exit code {code}"
        print(f"{precision}, {title}: {seconds:.0f} s, {(peak - weights) / 2**30:.2f} GiB beyond the weights{ended}")


def measured(command: list[str]) -> tuple[float, int, int]:
    """Run a command; returns seconds, its largest resident set in bytes and its exit code."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    return time.monotonic() - start, usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
