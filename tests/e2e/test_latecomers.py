"""Calls that reach a server while it stops: each has its answer or UNAVAILABLE, and so can be sent to another one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1.translation_pb2_grpc import TranslationServiceStub
from tests.e2e.process import WAIT_S, ServerProcess, start_server

_CALLERS, _SERVERS = 24, 3
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


def call_until_refused(server: ServerProcess) -> tuple[int, grpc.StatusCode]:
    """Call again and again, each time on a new connection; returns the number of answers and the first error."""
    answers = 0
    while True:
        with grpc.insecure_channel(server.address, _OPTIONS) as channel:
            try:
                TranslationServiceStub(channel).Translate(pb.TranslateRequest(texts=["one week"]), timeout=WAIT_S)
            except grpc.RpcError as error:
                return answers, error.code()
        answers += 1


def test_no_call_is_cancelled_by_a_server_that_stops() -> None:
    """What gRPC has read and no handler has begun is refused, not cancelled: the caller knows what to do."""
    for _ in range(_SERVERS):
        with start_server("--max-rows", "8") as server, ThreadPoolExecutor(_CALLERS) as threads:
            callers = [threads.submit(call_until_refused, server) for _ in range(_CALLERS)]
            while server.metric("requests_total", method="Translate", code="OK") < _CALLERS:
                pass
            server.terminate()
            found = [caller.result() for caller in callers]

            assert server.wait() == 0
            assert {code for _, code in found} == {grpc.StatusCode.UNAVAILABLE}
            assert sum(answers for answers, _ in found) >= _CALLERS
