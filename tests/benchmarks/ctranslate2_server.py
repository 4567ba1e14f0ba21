"""A plain gRPC server around CTranslate2 with dynamic batching: what one would write without Dragoman.

    python -m tests.benchmarks.ctranslate2_server --model FOLDER --bundle BUNDLE --threads 2

It speaks `dragoman.v1.TranslationService.Translate`, so that the same client measures both. The tokenizer and the
limit on new tokens are those of a bundle of the same model. It prints a line when it is ready, as our server does.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ctranslate2
import grpc

from dragoman.export.bundle import load_manifest, load_tokenizer
from dragoman.export.token_names import token_names
from dragoman.v1 import translation_pb2 as pb
from tests.benchmarks.batcher import Batcher, Waiting

_SERVICE = pb.DESCRIPTOR.services_by_name["TranslationService"].full_name

Context = grpc.aio.ServicerContext[Any, Any]


class BatchedService:
    """Tokenizes, lets batches translate, detokenizes."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Load everything and translate once, so that the first caller does not pay for it."""
        manifest = load_manifest(arguments.bundle)
        self._manifest = manifest
        self._tokenizer = load_tokenizer(arguments.bundle, manifest)
        self._translator = ctranslate2.Translator(
            str(arguments.model), device="cpu", compute_type=arguments.compute_type,
            inter_threads=arguments.replicas, intra_threads=max(1, arguments.threads // arguments.replicas),
        )  # fmt: skip
        self._names, targets = token_names(self._tokenizer, manifest.several)
        self._ids = {name: i for i, name in enumerate(targets)}
        self._tokenizers = ThreadPoolExecutor(2, thread_name_prefix="tokenizer")
        self._translator.translate_batch([[self._names[-1]]] * arguments.max_batch, max_decoding_length=2)
        self._batcher = Batcher(
            self._translate,
            window_s=arguments.window_ms / 1e3,
            max_batch=arguments.max_batch,
            replicas=arguments.replicas,
        )

    async def translate(self, request: pb.TranslateRequest, context: Context) -> pb.TranslateResponse:  # noqa: ARG002  # gRPC's signature
        """Translate the texts of a call; only `max_new_tokens` and `beam_size` of the options are known."""
        loop = asyncio.get_running_loop()
        sources = await loop.run_in_executor(self._tokenizers, self._encode_all, list(request.texts))
        beams = request.options.beam_size or 1
        waiting = []
        for source in sources:
            limit = request.options.max_new_tokens or self._manifest.limits.default_max_new_tokens(len(source))
            names = [self._names[i] for i in source[:-1]]  # CTranslate2 adds its EOS
            waiting.append(self._batcher.submit(names, limit, beams))
        found = await asyncio.gather(*waiting)
        response = pb.TranslateResponse(model=self._manifest.name, id=request.id)
        for source, names in zip(sources, found, strict=True):
            target = [self._ids[name] for name in names]
            text = self._tokenizer.decode(target)
            response.translations.add(text=text, source_tokens=len(source) - 1, target_tokens=len(target))
        return response

    async def close(self) -> None:
        """End threads."""
        await self._batcher.close()
        self._tokenizers.shutdown()

    def _encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._tokenizer.encode(text) for text in texts]

    def _translate(self, batch: Sequence[Waiting]) -> list[list[str]]:
        """Translate a batch; it has one limit, the highest of its texts'."""
        results = self._translator.translate_batch(
            [waiting.tokens for waiting in batch],
            beam_size=batch[0].beams,
            max_decoding_length=max(waiting.limit for waiting in batch),
            max_input_length=0,
        )
        return [result.hypotheses[0][: waiting.limit] for result, waiting in zip(results, batch, strict=True)]


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    service = BatchedService(arguments)
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        service.translate,
        request_deserializer=pb.TranslateRequest.FromString,
        response_serializer=pb.TranslateResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Translate": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"ready grpc=127.0.0.1:{port} http=none", flush=True)
    await stop.wait()
    await server.stop(5.0)
    await service.close()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="CTranslate2 folder")
    parser.add_argument("--bundle", type=Path, required=True, help="for tokenizer and limits")
    parser.add_argument("--compute-type", default="int8")
    parser.add_argument("--threads", type=int, default=1, help="of all replicas together")
    parser.add_argument("--replicas", type=int, default=1, help="batches at a time; they share the threads")
    parser.add_argument("--window-ms", type=float, default=5.0)
    parser.add_argument("--max-batch", type=int, default=32)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
