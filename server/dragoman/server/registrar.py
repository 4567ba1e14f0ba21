"""How services are added to the gRPC server, so that bytes that are no message are the caller's error.

gRPC's own answer to them is UNKNOWN, with the name of a Python class, and a traceback in the log for each call: whoever
reaches the port could fill it. A handler added here refuses them as any other wrong request.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf import descriptor_pool

from dragoman.server.errors import InvalidArgument, to_status

# Told the service and the method of a refused call.
Refused = Callable[[str, str], None]
_Context = grpc.aio.ServicerContext[Any, Any]
_Check = Callable[[Any, _Context], Any]


class Registrar:
    """Stands in for the server where generated code adds a servicer to it: `add_..._to_server(servicer, registrar)`."""

    def __init__(self, server: grpc.aio.Server, refused: Refused) -> None:
        """Add to `server`; `refused` is told of each call whose bytes were no message."""
        self._server = server
        self._refused = refused

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Do nothing: generated code adds the same methods once more, by name, and only there they can be changed."""

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Add the methods of a service."""
        handlers = {name: self._guarded(service_name, name, handler) for name, handler in method_handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service_name, handlers),))
        self._server.add_registered_method_handlers(service_name, handlers)

    def _guarded(self, service: str, method: str, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        wanted = descriptor_pool.Default().FindMethodByName(f"{service}.{method}").input_type.full_name
        error = InvalidArgument(
            "request",
            f"these bytes are no valid {wanted}, or a text in them is not UTF-8; send a message of this type, as the "
            f".proto file of {service} has it",
        )

        async def check(request: Any, context: _Context) -> None:
            if isinstance(request, _NoMessage):
                self._refused(service, method)
                await context.abort_with_status(to_status(error))

        make, behaviour = _kind(handler)
        return make(
            _checked(behaviour, check, requests=handler.request_streaming),
            request_deserializer=_reading(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


class _NoMessage:
    """What stands for a request that cannot be read."""


_NO_MESSAGE = _NoMessage()


def _reading(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(serialized: bytes) -> Any:
        try:
            return deserialize(serialized)
        except Exception:  # whatever protobuf's implementation in use raises, it is about the bytes
            return _NO_MESSAGE

    return read


def _kind(handler: Any) -> tuple[Callable[..., grpc.RpcMethodHandler[Any, Any]], Callable[..., Any]]:
    """Return what makes handlers of this kind, and what this one does with a call."""
    kind = ("stream" if one else "unary" for one in (handler.request_streaming, handler.response_streaming))
    name = "_".join(kind)
    return getattr(grpc, f"{name}_rpc_method_handler"), getattr(handler, name)


def _checked(behaviour: Callable[..., Any], check: _Check, *, requests: bool) -> Callable[..., Any]:
    """Return `behaviour` behind a check of its request, or of each one of a stream.

    gRPC looks at what kind of function it is, so the new one is of the same kind.
    """

    async def begin(request: Any, context: _Context) -> Any:
        if requests:
            return _each(request, check, context)
        await check(request, context)
        return request

    if inspect.isasyncgenfunction(behaviour):

        async def stream(request: Any, context: _Context) -> AsyncIterator[Any]:
            async with aclosing(behaviour(await begin(request, context), context)) as responses:
                async for response in responses:
                    yield response

        return stream

    async def call(request: Any, context: _Context) -> Any:
        return await behaviour(await begin(request, context), context)

    return call


async def _each(requests: AsyncIterator[Any], check: _Check, context: _Context) -> AsyncIterator[Any]:
    async for request in requests:
        await check(request, context)
        yield request
