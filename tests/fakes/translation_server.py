"""A translation service that upper-cases, for tests of clients: real sockets, scripted failures.

A token is a word and its log-probability is minus its length. The second hypothesis has one exclamation mark, the third
two. Each word comes from the word at its own place. Knows the protocol only, so that client tests need nothing of the
server.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1.translation_pb2_grpc import TranslationServiceServicer, add_TranslationServiceServicer_to_server

MODEL = pb.Model(
    name="shout",
    version="abc123",
    language_pairs=[pb.LanguagePair(source_language="en", target_language="de")],
    limits=pb.Limits(
        max_texts=64,
        max_source_tokens=100,
        max_target_tokens=101,
        max_message_bytes=2**20,
        max_queued_texts=256,
        max_beam_size=32,
        max_num_hypotheses=16,
        max_return_alternatives=8,
        max_suppressed_texts=4,
        max_stop_sequences=2,
        max_option_characters=50,
    ),
    requested_device="cuda",
    device="cpu",
    precision="int8",
    alignment=True,
)
TIMINGS = pb.Timings(total_ns=60, tokenize_ns=1, queue_ns=2, encode_ns=3, decode_ns=4, first_token_ns=5)
STOP_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Failure:
    """How a call fails.

    Attributes:
        code: gRPC status.
        message: Its text.
        violations: Field and description of each google.rpc.BadRequest violation.
        retry_after_s: google.rpc.RetryInfo in seconds.
        raw_details: Sent instead of well-formed details.
    """

    code: grpc.StatusCode
    message: str = "scripted"
    violations: tuple[tuple[str, str], ...] = ()
    retry_after_s: float | None = None
    raw_details: bytes | None = None

    def details(self) -> bytes:
        """Return the serialized google.rpc.Status."""
        if self.raw_details is not None:
            return self.raw_details
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        if self.violations:
            bad_request = error_details_pb2.BadRequest()
            for field, description in self.violations:
                bad_request.field_violations.add(field=field, description=description)
            status.details.append(_packed(bad_request))
        if self.retry_after_s is not None:
            retry_info = error_details_pb2.RetryInfo()
            retry_info.retry_delay.FromNanoseconds(round(self.retry_after_s * 1e9))
            status.details.append(_packed(retry_info))
        data: bytes = status.SerializeToString()
        return data


class FakeTranslationService(TranslationServiceServicer):
    """Upper-cases, and does what a test asks for.

    Attributes:
        requests: Every request, in order of arrival.
        callers: The name that each request's caller gave, or None.
        failures: The next calls fail like this, one entry per call.
        rejected: Calls that contain one of these texts fail.
        before_translate: Called with each Translate request before it is answered.
        num_missing: So many translations are left out of each answer.
        stream_failure: Streams fail like this after their first piece.
        stream_hangs: Streams stop after their first piece until the client goes away.
        stream_breaks: Streams end well without their last message.
        call_over: Set when a call has ended for whatever reason, cancellation included.
    """

    def __init__(self) -> None:
        self.requests: list[object] = []
        self.callers: list[object] = []
        self.failures: deque[Failure] = deque()
        self.rejected: dict[str, Failure] = {}
        self.before_translate: Callable[[pb.TranslateRequest], None] = _nothing
        self.num_missing = 0
        self.stream_failure: Failure | None = None
        self.stream_hangs = False
        self.stream_breaks = False
        self.call_over = threading.Event()

    def hold_calls(self, wait_s: float) -> threading.Event:
        """Answer Translate calls only once one has ended, or after so many seconds; the event is set by the first."""
        arrived = threading.Event()

        def wait(request: pb.TranslateRequest) -> None:
            del request
            arrived.set()
            self.call_over.wait(wait_s)

        self.before_translate = wait
        return arrived

    @property
    def translated(self) -> list[list[str]]:
        """Texts of each Translate request."""
        return [list(request.texts) for request in self.requests if isinstance(request, pb.TranslateRequest)]

    def Translate(self, request: pb.TranslateRequest, context: grpc.ServicerContext) -> pb.TranslateResponse:  # noqa: N802, D102 - gRPC's name
        self._begin(request, context)
        self.before_translate(request)
        for text in request.texts:
            if text in self.rejected:
                fail(context, self.rejected[text])
        kept = request.texts[: len(request.texts) - self.num_missing]
        return pb.TranslateResponse(
            translations=[
                _translation(text, request.options, prefix)
                for text, prefix in zip(kept, request.target_prefixes or [""] * len(kept), strict=False)
            ],
            model=request.model or MODEL.name,
            id=request.id,
            timings=TIMINGS,
        )

    def StreamTranslate(  # noqa: N802, D102 - gRPC's name
        self, request: pb.StreamTranslateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.StreamTranslateResponse]:
        self._begin(request, context)
        if request.text in self.rejected:
            fail(context, self.rejected[request.text])
        translation = _translation(request.text, request.options, request.target_prefix)
        for position, word in enumerate(translation.text.split(" ")):
            yield pb.StreamTranslateResponse(text=f" {word}" if position else word)
            if self.stream_failure is not None:
                fail(context, self.stream_failure)
            if self.stream_hangs:
                self.call_over.wait()
                return
        if self.stream_breaks:
            return
        end = pb.StreamEnd(
            finish_reason=translation.finish_reason,
            source_tokens=translation.source_tokens,
            target_tokens=translation.target_tokens,
            model=request.model or MODEL.name,
            id=request.id,
            timings=TIMINGS,
            hypotheses=translation.hypotheses,
            source_pieces=translation.source_pieces,
        )
        yield pb.StreamTranslateResponse(end=end)

    def Score(self, request: pb.ScoreRequest, context: grpc.ServicerContext) -> pb.ScoreResponse:  # noqa: N802, D102 - gRPC's name
        self._begin(request, context)
        for pair in request.pairs:
            if pair.source in self.rejected:
                fail(context, self.rejected[pair.source])
        kept = request.pairs[: len(request.pairs) - self.num_missing]
        return pb.ScoreResponse(
            scores=[_score(pair) for pair in kept], model=request.model or MODEL.name, id=request.id, timings=TIMINGS
        )

    def ListModels(self, request: pb.ListModelsRequest, context: grpc.ServicerContext) -> pb.ListModelsResponse:  # noqa: N802, D102 - gRPC's name
        self._begin(request, context)
        return pb.ListModelsResponse(models=[MODEL])

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.GetModelResponse:  # noqa: N802, D102 - gRPC's name
        self._begin(request, context)
        if request.name not in ("", MODEL.name):
            fail(context, Failure(grpc.StatusCode.NOT_FOUND, f"no model {request.name!r}; there is 'shout'"))
        return pb.GetModelResponse(model=MODEL)

    def _begin(self, request: object, context: grpc.ServicerContext) -> None:
        self.requests.append(request)
        self.callers.append(dict(context.invocation_metadata() or ()).get("dragoman-caller"))
        context.add_callback(self.call_over.set)
        if self.failures:
            fail(context, self.failures.popleft())


@contextmanager
def serve(service: FakeTranslationService, address: str = "127.0.0.1:0") -> Iterator[str]:
    """Serve on loopback; yields HOST:PORT."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        add_TranslationServiceServicer_to_server(service, server)
        port = server.add_insecure_port(address)
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(grace=0).wait(STOP_GRACE_S)


def _translation(text: str, options: pb.DecodingOptions, prefix: str) -> pb.Translation:
    words = text.split()
    kept = words[: options.max_new_tokens or None]
    # Untouched white space unless cut: tests want to see line breaks come back.
    made = "" if not words else text.upper() if len(kept) == len(words) else " ".join(kept).upper()
    translation = pb.Translation(
        text=f"{prefix} {made}" if prefix and made else made,
        finish_reason=pb.FINISH_REASON_EOS if len(kept) == len(words) else pb.FINISH_REASON_LENGTH,
        source_tokens=len(words),
        target_tokens=len(kept),
        source_pieces=words if options.return_alignment else (),
    )
    count = max(options.num_hypotheses, options.return_alternatives, 1)
    if count > 1 or options.HasField("sampling") or options.return_scores or options.return_alignment:
        translation.hypotheses.extend(_hypothesis(translation, kept, number, options) for number in range(count))
    return translation


def _hypothesis(
    translation: pb.Translation, words: list[str], number: int, options: pb.DecodingOptions
) -> pb.Hypothesis:
    hypothesis = pb.Hypothesis(
        text=translation.text + "!" * number,
        finish_reason=translation.finish_reason,
        target_tokens=translation.target_tokens,
    )
    if options.return_scores:
        hypothesis.log_prob, hypothesis.score = -1.0 - number, -0.5 - number
    if options.return_token_scores:
        hypothesis.tokens.extend(_tokens(words))
    if options.return_alignment:
        rows = [[1.0 if i == j else 0.0 for j in range(translation.source_tokens)] for i in range(len(words))]
        hypothesis.alignment.extend(pb.AlignmentRow(weights=row) for row in rows)
    if options.HasField("sampling"):
        hypothesis.seed = options.sampling.seed + number
    return hypothesis


def _tokens(words: list[str]) -> list[pb.TokenScore]:
    return [*(pb.TokenScore(text=word, log_prob=-len(word)) for word in words), pb.TokenScore(log_prob=-0.5)]


def _score(pair: pb.ScorePair) -> pb.PairScore:
    source, target = pair.source.split(), pair.target.split()
    score = pb.PairScore(source_tokens=len(source), target_tokens=len(target))
    if source:
        score.tokens.extend(_tokens(target))
        score.log_prob = sum(token.log_prob for token in score.tokens)
    elif target:
        score.log_prob = -math.inf
    return score


def fail(context: grpc.ServicerContext, failure: Failure) -> None:
    """End a call with a failure."""
    context.set_trailing_metadata((("grpc-status-details-bin", failure.details()),))
    context.abort(failure.code, failure.message)


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _nothing(request: pb.TranslateRequest) -> None:
    del request
