"""The whole path on the generated task: corpus, train, export, verify, serve, translate, compare.

`make pipeline` runs it in full; `tests/integration/test_pipeline.py` runs a shorter one. Every step is
the command that a user would type, and is printed before it runs.
"""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "model" / "recipes" / "numbers.toml"
REQUIRED = 0.99
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Result:
    """What came out.

    Attributes:
        sentences: Texts translated through the server.
        exact: How many equal the only right answer.
        wrong: The others, with the right answer.
    """

    sentences: int
    exact: int
    wrong: tuple[tuple[str, str, str], ...]


def run_pipeline(work: Path, *, recipe: Path = RECIPE, sentences: int = 200, train: int = 50_000) -> Result:
    """Run all steps below `work`; raises CalledProcessError if one fails."""
    corpus, run, bundle = work / "corpus", work / "run", work / "bundle"
    _dragoman(
        "corpus",
        "generate",
        "--out",
        corpus,
        "--train",
        train,
        "--valid",
        300,
        "--test",
        1000,
        "--seed",
        1,
        "--kinds",
        "number",
    )
    _dragoman("train", "--recipe", recipe, "--data", corpus, "--out", run)
    _dragoman("export", "--checkpoint", run, "--out", bundle, "--name", "numbers", "--data", corpus / "test.tsv")
    _dragoman("verify", bundle, "--checkpoint", run, "--data", corpus / "test.tsv")
    pairs = [line.split("\t")[:2] for line in (corpus / "test.tsv").read_text("utf-8").splitlines()[:sentences]]
    (work / "sources.txt").write_text("".join(f"{source}\n" for source, _ in pairs), "utf-8")
    with _server(bundle) as address:
        _dragoman(
            "translate", "--server", address, "--file", work / "sources.txt", "--output", work / "translations.txt"
        )
    translations = (work / "translations.txt").read_text("utf-8").splitlines()
    wrong = [
        (source, found, right) for (source, right), found in zip(pairs, translations, strict=True) if found != right
    ]
    return Result(len(pairs), len(pairs) - len(wrong), tuple(wrong))


def _dragoman(*arguments: object) -> None:
    words = ["dragoman", *map(str, arguments)]
    print("$", shlex.join(words), flush=True)
    subprocess.run([sys.executable, "-m", "dragoman.cli.main", *words[1:]], check=True)


@contextmanager
def _server(bundle: Path) -> Iterator[str]:
    """Serve a bundle on a free port; yields its address."""
    words = ["serve", "--model", str(bundle), "--grpc-port", "0", "--http-port", "0"]
    print("$", shlex.join(["dragoman", *words]), "&", flush=True)
    command = [sys.executable, "-m", "dragoman.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise AssertionError("stdout is piped")
        watchdog = threading.Timer(_TIMEOUT_S, process.kill)  # a server that hangs must not hang the tests
        watchdog.start()
        try:
            ready = re.match(r"ready grpc=(\S+)", process.stdout.readline())
            if not ready:
                raise RuntimeError("the server did not start")
            yield ready[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            watchdog.cancel()
    if process.returncode:
        raise RuntimeError(f"the server stopped with exit code {process.returncode}")


def main() -> int:
    """Run and judge; exit code 1 below 99 % exact."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, help="folder for everything made; default: a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        result = run_pipeline(arguments.work or Path(scratch))
    for source, found, right in result.wrong:
        print(f"wrong: {source!r} -> {found!r}, right is {right!r}")
    print(
        f"{result.exact} of {result.sentences} exact ({result.exact / result.sentences:.1%}), required {REQUIRED:.0%}"
    )
    return 0 if result.exact >= REQUIRED * result.sentences else 1


if __name__ == "__main__":
    sys.exit(main())
