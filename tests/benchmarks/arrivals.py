"""Open-loop load: calls of one text at the times of a Poisson process, whether or not earlier ones have their answer.

    python -m tests.benchmarks.arrivals --address HOST:PORT --texts FILE --rate 20 --seconds 15

Runs in a process of its own and prints one JSON object. Latency counts from the time that the process planned for a
call, so that a client or a server that falls behind cannot hide it (no coordinated omission). `--closed N` keeps N
calls open instead, for as long: that is the most a server does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1.translation_pb2_grpc import TranslationServiceStub

# Loopback must not go through a proxy; each channel a connection of its own.
_CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
_CHANNELS = 4
_DEADLINE_S = 20.0


@dataclass(slots=True)
class Answers:
    """What came back.

    Attributes:
        latencies: Seconds, of calls that were answered.
        failures: Status codes of the others.
        tokens: Target tokens.
        lateness: Seconds that the client itself was late in sending, the worst.
        last_s: When the last answer came, from the start.
    """

    latencies: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    tokens: int = 0
    lateness: float = 0.0
    last_s: float = 0.0

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return counts, rates and percentiles, JSON-ready.

        Args:
            seconds: In which calls were sent.
        """
        found = sorted(self.latencies)
        return {
            "calls": len(found) + len(self.failures),
            "failures": {code: self.failures.count(code) for code in set(self.failures)},
            "texts_per_s": len(found) / max(seconds, self.last_s),
            "tokens_per_s": self.tokens / max(seconds, self.last_s),
            "client_lateness_s": self.lateness,
            "mean_s": statistics.fmean(found) if found else None,
            **{f"p{share}_s": percentile(found, share) for share in (50, 95, 99)},
        }


def percentile(ordered: Sequence[float], share: int) -> float | None:
    """Return the value that `share` percent of the values do not exceed (nearest rank), or None."""
    if not ordered:
        return None
    return ordered[max(0, -(-share * len(ordered) // 100) - 1)]


def arrival_times(rate: float, seconds: float, seed: int) -> list[float]:
    """Return the times of a Poisson process of `rate` per second."""
    generator = random.Random(seed)
    times: list[float] = []
    now = generator.expovariate(rate)
    while now < seconds:
        times.append(now)
        now += generator.expovariate(rate)
    return times


class Caller:
    """Sends calls over several connections."""

    def __init__(self, address: str, texts: Sequence[str], beams: int, seed: int) -> None:
        """Connect."""
        self._channels = [grpc.aio.insecure_channel(address, _CHANNEL_OPTIONS) for _ in range(_CHANNELS)]
        self._stubs = [TranslationServiceStub(channel) for channel in self._channels]
        self._texts = texts
        self._options = pb.DecodingOptions(beam_size=beams)
        self._generator = random.Random(seed + 1)
        self._start = time.perf_counter()
        self.answers = Answers()

    async def connect(self) -> None:
        """Open all connections, so that no call has to wait for one."""
        await asyncio.gather(*(channel.channel_ready() for channel in self._channels))

    async def open_loop(self, times: Sequence[float]) -> None:
        """Send a call at each of the times; returns when all have ended."""
        self._start = time.perf_counter()
        tasks = []
        for number, planned in enumerate(times):
            await asyncio.sleep(self._start + planned - time.perf_counter())
            self.answers.lateness = max(self.answers.lateness, time.perf_counter() - self._start - planned)
            tasks.append(asyncio.create_task(self._call(number, planned)))
        await asyncio.gather(*tasks)

    async def closed_loop(self, calls: int, seconds: float) -> None:
        """Keep so many calls open."""
        self._start = time.perf_counter()

        async def one(number: int) -> None:
            while (now := time.perf_counter() - self._start) < seconds:
                await self._call(number, now)

        await asyncio.gather(*(one(number) for number in range(calls)))

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def _call(self, number: int, planned: float) -> None:
        request = pb.TranslateRequest(texts=[self._generator.choice(self._texts)], options=self._options)
        try:
            call = self._stubs[number % _CHANNELS].Translate(request, timeout=_DEADLINE_S)
            response: pb.TranslateResponse = await call
        except grpc.aio.AioRpcError as error:
            self.answers.failures.append(error.code().name)
            return
        self.answers.last_s = time.perf_counter() - self._start
        self.answers.latencies.append(self.answers.last_s - planned)
        self.answers.tokens += response.translations[0].target_tokens


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Warm the connections up, send the load, return the summary."""
    texts = json.loads(arguments.texts.read_text("utf-8"))
    warm_up = Caller(arguments.address, texts, arguments.beams, arguments.seed)
    await warm_up.closed_loop(_CHANNELS, arguments.warm_up_s)
    await warm_up.close()
    caller = Caller(arguments.address, texts, arguments.beams, arguments.seed)
    await caller.connect()
    if arguments.closed:
        await caller.closed_loop(arguments.closed, arguments.seconds)
    else:
        await caller.open_loop(arrival_times(arguments.rate, arguments.seconds, arguments.seed))
    await caller.close()
    return {"rate": arguments.rate, "seconds": arguments.seconds, **caller.answers.summary(arguments.seconds)}


def main() -> None:
    """Print the summary as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", required=True, help="of the server, host:port")
    parser.add_argument("--texts", type=Path, required=True, help="JSON list of texts; each call takes one at random")
    parser.add_argument("--rate", type=float, default=1.0, help="calls per second")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--closed", type=int, default=0, help="so many calls open at a time, instead of a rate")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-up-s", type=float, default=1.0)
    json.dump(asyncio.run(run(parser.parse_args())), sys.stdout)


if __name__ == "__main__":
    main()
