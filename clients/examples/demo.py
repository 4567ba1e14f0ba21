"""Start a server, translate, look at its metrics, stop it: `make demo`.

Also an example of the client: one text, many texts in one call, and a stream.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.client import TranslationClient

SENTENCES = (
    "Click the button to save the file.",
    "The package contains the documentation.",
    "Select the text that you want to copy.",
    "This library provides functions for reading images.",
    "The following options are available.",
    "Returns the number of characters in the string.",
    "Open the settings and choose a language.",
    "The file could not be found.",
    "Enter the name of the new user.",
    "Use this command to insert a picture into the document.",
    "Password",
    "If you want to print only one page, select the page in the list and click the print button.",
)
_READY = re.compile(r"ready grpc=(\S+) http=(\S+)")
_TIMEOUT_S = 120.0  # the whole demo; a server that hangs is killed


def main() -> int:
    """Run the demo; returns 0 if everything was translated and the server stopped cleanly."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="bundle folder; default: the one that comes with the package")
    arguments = parser.parse_args()
    started = time.monotonic()
    with _server(arguments.model) as (grpc_address, http_address):
        print(f"server is ready at {grpc_address} after {time.monotonic() - started:.1f} s\n")
        with TranslationClient(grpc_address) as client:
            _describe(client)
            _one_by_one(client)
            _as_batch(client)
            _streamed(client)
        _metrics(http_address)
    print("server stopped cleanly")
    return 0


@contextmanager
def _server(model: str | None) -> Iterator[tuple[str, str]]:
    """Run `dragoman serve` on free ports; yields the gRPC and HTTP addresses."""
    command = [sys.executable, "-m", "dragoman.cli.main", "serve", "--grpc-port", "0", "--http-port", "0"]
    command += ["--log-level", "warning", *(["--model", model] if model else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise AssertionError("stdout is piped")
        watchdog = threading.Timer(_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            line = process.stdout.readline()  # ends at once if the server dies, whose reason is on stderr
            ready = _READY.match(line)
            if not ready:
                raise SystemExit("the server did not start")
            yield ready[1], ready[2]
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait()
            watchdog.cancel()
    if code:
        raise SystemExit(f"the server stopped with exit code {code}")


def _describe(client: TranslationClient) -> None:
    model = client.model()
    pair = model.language_pairs[0]
    print(f"model {model.name} ({pair.source_language} to {pair.target_language}), {model.precision} on {model.device}")
    print(f"version {model.version}, up to {model.limits.max_source_tokens} tokens a text\n")


def _one_by_one(client: TranslationClient) -> None:
    print("one call per sentence")
    for sentence in SENTENCES:
        start = time.perf_counter()
        result = client.translate([sentence])
        took = (time.perf_counter() - start) * 1e3
        first = result.timings.first_token_ns / 1e6
        print(f"  {took:6.1f} ms (first token {first:5.1f})  {sentence}\n{'':33}{result.texts[0]}")


def _as_batch(client: TranslationClient) -> None:
    start = time.perf_counter()
    result = client.translate(SENTENCES)
    took = (time.perf_counter() - start) * 1e3
    tokens = sum(translation.target_tokens for translation in result.translations)
    print(f"\nall {len(SENTENCES)} in one call: {took:.1f} ms, {tokens} tokens, {tokens / took * 1e3:.0f} tokens/s")


def _streamed(client: TranslationClient) -> None:
    print("\nstreamed, a bar between two pieces\n  ", end="")
    start = time.perf_counter()
    for piece in client.stream(SENTENCES[-1]):
        if piece.end is None:
            print(piece.text, end="|", flush=True)
        else:
            took = (time.perf_counter() - start) * 1e3
            print(f"\n  {piece.end.target_tokens} tokens in {took:.1f} ms, ended by {piece.end.finish_reason.value}")


def _metrics(address: str) -> None:
    """Print count and mean of the main histograms."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:  # our own server
        lines = response.read().decode().splitlines()
    values: dict[str, float] = {}
    for line in lines:
        if line.startswith("dragoman_") and "_bucket" not in line:
            name, value = line.rsplit(" ", 1)
            key = name.split("{")[0]
            values[key] = values.get(key, 0.0) + float(value)
    print(f"\nmetrics from http://{address}/metrics")
    for name in (
        "request_duration_seconds",
        "queue_duration_seconds",
        "encode_duration_seconds",
        "decode_step_duration_seconds",
        "time_to_first_token_seconds",
        "decode_step_rows",
    ):
        count = values[f"dragoman_{name}_count"]
        mean = values[f"dragoman_{name}_sum"] / count
        shown = f"{mean * 1e3:8.2f} ms" if name.endswith("seconds") else f"{mean:8.2f} rows"
        print(f"  {name:<30} {count:6.0f} times, mean {shown}")
    print(
        f"  tokens in {values['dragoman_source_tokens_total']:.0f}, out {values['dragoman_target_tokens_total']:.0f}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
