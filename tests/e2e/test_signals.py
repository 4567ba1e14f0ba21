"""Which signals stop a server, and what a second one does."""

from __future__ import annotations

import signal
import time

import grpc
import pytest

from dragoman.v1 import translation_pb2 as pb
from tests.e2e.process import WAIT_S, ServerProcess, clean_environment, serve_command, start_server, wait_for

ENDLESS = "and " * 30  # not a sentence: the model repeats itself up to the limit
LONG = pb.TranslateRequest(texts=[ENDLESS] * 256, options=pb.DecodingOptions(max_new_tokens=128))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_each_of_them_is_a_drain(number: signal.Signals) -> None:
    """Also a terminal that is closed: what was accepted is finished, and the exit is clean."""
    with start_server("--max-rows", "1") as server:
        request = pb.TranslateRequest(texts=[ENDLESS] * 24, options=LONG.options)  # takes a second
        call = server.stub.Translate.future(request, timeout=WAIT_S)
        wait_for(lambda: server.metric("texts_running") == 1, "the call runs")

        server.process.send_signal(number)

        assert len(call.result().translations) == 24
        assert server.wait() == 0


@pytest.mark.parametrize("flags", [(), ("--drain-delay-s", "3600")], ids=["draining", "in the delay"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_second_one_ends_the_wait(flags: tuple[str, ...], number: signal.Signals) -> None:
    """Calls get what lets their callers send them elsewhere; a hang-up in between is no hurry."""
    with start_server("--max-rows", "1", "--drain-timeout-s", "3600", *flags) as server:
        call = server.stub.Translate.future(LONG, timeout=WAIT_S)
        wait_for(lambda: server.metric("texts_running") == 1, "the call runs")
        server.terminate()
        wait_for(lambda: server.get("/readyz")[0] == 503, "it drains")
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert not call.done()

        server.process.send_signal(number)
        with pytest.raises(grpc.RpcError) as caught:
            call.result()

        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert server.wait() == 0
        assert "told to stop again" in server.errors


def test_with_nohup_a_server_goes_on_without_its_terminal() -> None:
    """The signal is ignored then, and stays so."""
    with ServerProcess(["nohup", *serve_command()], clean_environment()) as server:
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)

        assert server.get("/readyz") == (200, "ok\n")
