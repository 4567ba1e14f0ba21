"""Half an hour of everything against a server process: its memory stays flat, its slots return, nothing is left.

    python -m tests.benchmarks.soak --minutes 30
    python -m tests.benchmarks.soak --quick

Callers send texts of random lengths with random options (greedy, beams, sampling, penalties, limits, streams,
scores), a fifth of the calls are cancelled at a random moment, some have a deadline that they cannot meet. Prints
a sample now and then and a verdict, and exits with 1 if something was wrong:

- resident memory at the end is at most 2 % above that after the warm-up,
- every call ended in an expected way,
- no text is in the engine, no slot in use, and there are no more threads and open files than after the warm-up,
- the server drains and exits with 0 within seconds of SIGTERM, so no task of it waits for anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import grpc

from dragoman.model.generated import examples
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1.translation_pb2_grpc import TranslationServiceStub
from tests.benchmarks import machine
from tests.e2e.process import ServerProcess, clean_environment, serve_command, wait_for

BUILT_IN = Path(__file__).parents[2] / "server" / "dragoman" / "server" / "models" / "en-de"
MOST_DRIFT = 0.02
_SEED = 7
_CANCELLED, _HURRIED = 0.2, 0.05  # shares of the calls
_LONGEST_WORDS = 65  # about 230 tokens
_EXPECTED = {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
_CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0),)
_WARM_UP_SHARE = 0.25
_LAST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Sample:
    """What the server looks like at a time.

    Attributes:
        second: Since the start.
        resident_mb: Memory.
        threads: Of the process.
        files: That it has open.
        running: Texts with slots.
        waiting: Texts in the queue.
        calls: That have ended so far.
    """

    second: float
    resident_mb: float
    threads: int
    files: int
    running: float
    waiting: float
    calls: int


def take_sample(server: ServerProcess, second: float, calls: int) -> Sample:
    """Look at the server."""
    process = Path(f"/proc/{server.process.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Sample(
        second,
        int(status["VmRSS"].split()[0]) / 1024,
        int(status["Threads"]),
        len(list((process / "fd").iterdir())),
        server.metric("texts_running"),
        server.metric("texts_waiting"),
        calls,
    )


class Callers:
    """Sends random calls until told to stop.

    Attributes:
        ended: Calls by what became of them.
    """

    def __init__(self, address: str, concurrency: int) -> None:
        """Prepare `concurrency` callers."""
        self.ended: Counter[str] = Counter()
        self._address = address
        self._concurrency = concurrency
        self._random = random.Random(_SEED)
        texts = (example.source for example in islice(examples(seed=_SEED), 2000))
        self._words = " ".join(texts).split()

    async def run(self, seconds: float) -> None:
        """Call for so many seconds."""
        async with grpc.aio.insecure_channel(self._address, _CHANNEL_OPTIONS) as channel:
            stub = TranslationServiceStub(channel)
            # The server makes the threads that tokenize long calls when there are such calls, and keeps them.
            long = pb.TranslateRequest(texts=[" ".join(self._words[:40])] * 8)
            await asyncio.gather(*(stub.Translate(long) for _ in range(8)))
            end = time.monotonic() + seconds
            await asyncio.gather(*(self._caller(stub, end) for _ in range(self._concurrency)))

    async def _caller(self, stub: Any, end: float) -> None:
        while time.monotonic() < end:
            if self._random.random() < 0.1:
                await asyncio.sleep(self._random.random())  # not always the same load
            self.ended[await self._call(stub)] += 1

    async def _call(self, stub: Any) -> str:
        draw = self._random
        timeout = draw.uniform(0.001, 0.1) if draw.random() < _HURRIED else 60.0
        streamed = draw.random() < 0.3
        if streamed:
            request = pb.StreamTranslateRequest(text=self._text(), options=self._options(streamed=True))
            call = stub.StreamTranslate(request, timeout=timeout)
        else:
            texts = [self._text() for _ in range(draw.choice((1, 1, 1, 2, 5, 20)))]
            call = stub.Translate(pb.TranslateRequest(texts=texts, options=self._options()), timeout=timeout)
        task = asyncio.ensure_future(_finish(call, streamed=streamed))
        if draw.random() < _CANCELLED:
            await asyncio.wait([task], timeout=draw.expovariate(4))
            call.cancel()
        return await task

    def _text(self) -> str:
        count = min(_LONGEST_WORDS, int(self._random.lognormvariate(2.5, 0.9)))
        return " ".join(self._random.choices(self._words, k=count))  # now and then a blank one

    def _options(self, *, streamed: bool = False) -> pb.DecodingOptions:
        draw = self._random
        options = pb.DecodingOptions()
        kind = draw.choice(("greedy", "greedy", "beam", "sampling"))
        if kind == "beam" and not streamed:
            options.beam_size = draw.randint(2, 6)
            options.num_hypotheses = draw.randint(1, options.beam_size)
            options.length_penalty = draw.uniform(0.0, 1.5)
        elif kind == "sampling":
            options.sampling.temperature = draw.uniform(0.3, 1.5)
            options.sampling.top_k = draw.choice((0, 5, 50))
            options.sampling.top_p = draw.choice((0.8, 1.0))
        if draw.random() < 0.2:
            options.repetition_penalty = draw.uniform(0.8, 1.5)
        if draw.random() < 0.2:
            options.no_repeat_ngram_size = draw.randint(1, 4)
        if draw.random() < 0.2:
            options.max_new_tokens = draw.randint(1, 200)
        if draw.random() < 0.1 and kind != "beam":
            options.stop_sequences.append(draw.choice((",", "und", "Euro")))
        if draw.random() < 0.1:
            options.suppressed_texts.append(draw.choice(("Stunde", "und", "zwei")))
        options.return_token_scores = draw.random() < 0.1
        options.priority = draw.choice((pb.PRIORITY_NORMAL, pb.PRIORITY_INTERACTIVE, pb.PRIORITY_BULK))
        return options


async def _finish(call: Any, *, streamed: bool) -> str:
    """Return the status that a call ends with."""
    try:
        if streamed:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        code: str = error.code().name
        if code not in _EXPECTED:
            print(f"unexpected: {code}: {error.details()}", file=sys.stderr, flush=True)
        return code
    except asyncio.CancelledError:
        return "CANCELLED"
    return "OK"


def problems_of(samples: Sequence[Sample], last: Sample, ended: Counter[str], seconds: float) -> list[str]:
    """Return what was wrong, a sentence each.

    Args:
        samples: Under load.
        last: When all calls had ended.
        ended: Calls by what became of them.
        seconds: How long the load lasted.
    """
    found = [f"{count} calls ended as {code}" for code, count in ended.items() if code not in _EXPECTED]
    if not ended["OK"] or not ended["CANCELLED"]:
        found.append(f"the load was not what it should be: {dict(ended)}")
    warm = [sample for sample in samples if sample.second >= _WARM_UP_SHARE * seconds]
    if len(warm) < 4:
        return [*found, f"only {len(warm)} samples after the warm-up; let it run longer"]
    first, end = _resident(warm, first=True), _resident(warm, first=False)
    if end > first * (1 + MOST_DRIFT):
        found.append(f"resident memory went from {first:.1f} to {end:.1f} MB ({100 * (end / first - 1):+.1f} %)")
    for name in ("threads", "files"):
        most, left = max(getattr(sample, name) for sample in warm[: len(warm) // 2]), getattr(last, name)
        if left > most:
            found.append(f"{left} {name} at the end, at most {most} before")
    if last.running or last.waiting:
        found.append(f"{last.running:.0f} texts still run and {last.waiting:.0f} wait")
    return found


def drift(samples: Sequence[Sample], seconds: float) -> float:
    """Return how much resident memory grew after the warm-up, as a share."""
    warm = [sample for sample in samples if sample.second >= _WARM_UP_SHARE * seconds]
    return _resident(warm, first=False) / _resident(warm, first=True) - 1 if warm else 0.0


def _resident(warm: Sequence[Sample], *, first: bool) -> float:
    """Return the median of resident memory over the first or the last part of the samples."""
    count = max(1, round(_LAST_SHARE * len(warm)))
    return statistics.median(sample.resident_mb for sample in (warm[:count] if first else warm[-count:]))


async def soak(server: ServerProcess, arguments: argparse.Namespace) -> tuple[list[Sample], Counter[str]]:
    """Load the server and take samples."""
    callers, samples, start = Callers(server.address, arguments.concurrency), list[Sample](), time.monotonic()
    seconds = 60 * arguments.minutes
    task = asyncio.ensure_future(callers.run(seconds))
    while not task.done():
        await asyncio.wait([task], timeout=arguments.sample_s)
        second = time.monotonic() - start
        sample = await asyncio.to_thread(take_sample, server, second, callers.ended.total())
        samples.append(sample)
        print(
            f"{sample.second:7.0f} s  {sample.resident_mb:8.1f} MB  {sample.threads} threads  {sample.files} files  "
            f"{sample.running:.0f} running  {sample.waiting:.0f} waiting  {sample.calls} calls",
            flush=True,
        )
    await task
    return samples, callers.ended


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, print the verdict, write JSON; returns the exit code."""
    arguments = read_arguments(argv)
    seconds = 60 * arguments.minutes
    about = machine.describe(arguments.threads)
    flags = ["--threads", str(arguments.threads), *arguments.flags]
    server = ServerProcess(serve_command(*flags, model=arguments.bundle), clean_environment())
    try:
        samples, ended = asyncio.run(soak(server, arguments))
        wait_for(lambda: server.rows_in_engine() == 0, "the engine is empty")
        used = server.metric("slots_used")
        last = take_sample(server, samples[-1].second, ended.total())
        problems = problems_of(samples, last, ended, seconds)
        if used:
            problems.append(f"{used:.0f} slots are still in use")
        if (code := server.stop()) != 0:
            problems.append(f"the server ended with {code}")
        problems += [line for line in server.errors.splitlines() if "Traceback" in line or "Error" in line][:5]
    finally:
        server.kill()
    result = {
        "machine": about, "minutes": arguments.minutes, "calls": dict(ended), "drift": drift(samples, seconds),
        "problems": problems, "samples": [asdict(sample) for sample in (*samples, last)],
    }  # fmt: skip
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(f"calls: {dict(ended)}; memory after the warm-up {100 * result['drift']:+.2f} %")
    print("\n".join(f"WRONG: {problem}" for problem in problems) or "all as it should be")
    return 1 if problems else 0


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--concurrency", type=int, default=24, help="callers; each has one call open at a time")
    parser.add_argument("--sample-s", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--bundle", type=Path, default=BUILT_IN)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="for `dragoman serve`; the last argument")
    parser.add_argument("--out", type=Path, default=Path("build/bench/soak.json"))
    parser.add_argument("--quick", action="store_true", help="one minute; too short to say much of memory")
    if parser.parse_args(argv).quick:  # other defaults
        parser.set_defaults(minutes=1.0, sample_s=2.0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
