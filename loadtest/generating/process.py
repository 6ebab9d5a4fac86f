"""A generator process: `python -m loadtest.generating.process`, an `Order` on its standard input.

Started by exec, never forked: gRPC does not survive a fork. It ends with its parent, whose end closes the pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping

import msgspec

from loadtest.call import Protocol
from loadtest.generating.calling import Caller
from loadtest.generating.dispatcher import Dispatcher
from loadtest.generating.messages import Begin, Down, Frames, Order, Ready, Target, frame
from loadtest.generating.precise_loop import precise_loop, run_in_real_time
from loadtest.generating.reporter import Reporter
from loadtest.generating.sender import Sender
from loadtest.generating.tracing import ClientTracing
from loadtest.generating.work import digest_of, load_work

_READ_BYTES = 1 << 16


class Control:
    """What the parent says, in its order. Its silence for good (EOF) is the end of all words."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._frames = Frames()
        self._whole: list[bytes] = []

    async def order(self) -> Order:
        return msgspec.msgpack.decode(await self._next() or b"", type=Order)

    async def next(self) -> Down | None:
        """None: the parent is gone."""
        body = await self._next()
        return None if body is None else msgspec.msgpack.decode(body, type=Down)

    async def _next(self) -> bytes | None:
        while not self._whole:
            if not (data := await self._reader.read(_READ_BYTES)):
                return None
            self._whole += self._frames.feed(data)
        return self._whole.pop(0)


class _Pipe(asyncio.BaseProtocol):
    """Says when all is written, or can't be any more."""

    def __init__(self, gone: asyncio.Event) -> None:
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()


@contextlib.asynccontextmanager
async def senders(target: Target) -> AsyncIterator[Mapping[Protocol, Sender]]:
    """Those that the target has an address for."""
    made: dict[Protocol, Sender] = {}
    async with contextlib.AsyncExitStack() as stack:
        if target.http:
            from loadtest.generating.openai_http import ChatSender, EmbeddingsSender, HttpSession

            session = HttpSession(target)
            await session.warm()
            stack.push_async_callback(session.close)
            made |= {"openai_chat": ChatSender(session), "openai_embeddings": EmbeddingsSender(session)}
        if target.grpc:
            from loadtest.generating.kserve_grpc import GenerateSender, GrpcChannel, TensorsSender

            channel = GrpcChannel(target)
            await channel.warm()
            stack.push_async_callback(channel.close)
            made |= {"grpc_generate": GenerateSender(channel), "grpc_tensors": TensorsSender(channel)}
        for sender in made.values():
            stack.push_async_callback(sender.close)
        yield made


async def _run(pipe: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    gone = asyncio.Event()
    up, _ = await loop.connect_write_pipe(lambda: _Pipe(gone), os.fdopen(pipe, "wb"))
    control = Control(reader)
    order = await control.order()
    work = load_work(order.maker, order.argument)
    reporter = Reporter(up.write)
    async with senders(order.target) as made:
        tracing = ClientTracing(order.target.spans_socket)
        caller = Caller(made, reporter, order.timeout_s, work.duration_s, tracing)
        dispatcher = Dispatcher(work, caller, order.process, order.num_processes)
        dispatcher.make_ahead()
        up.write(frame(Ready(digest_of(work))))
        begin = await control.next()
        if isinstance(begin, Begin):
            until_s = begin.t0_s + work.duration_s + order.drain_s
            await _send_all(dispatcher, reporter, control, begin.t0_s, until_s)
            reporter.finish(begin.t0_s)
    up.close()
    await gone.wait()


async def _send_all(
    dispatcher: Dispatcher, reporter: Reporter, control: Control, t0_s: float, until_s: float
) -> None:
    """Until all is answered, the time is over, or the parent says so or is gone."""
    aside = [asyncio.create_task(reporter.tell(t0_s)), asyncio.create_task(reporter.beat())]
    word = asyncio.create_task(control.next())
    sending = asyncio.create_task(dispatcher.run(t0_s))
    await asyncio.wait(
        (sending, word),
        timeout=max(0.0, until_s - time.monotonic()),
        return_when=asyncio.FIRST_COMPLETED,
    )
    if not word.done():
        draining = asyncio.create_task(dispatcher.drain(until_s))
        await asyncio.wait((draining, word), return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
    for task in (*aside, word, sending):
        task.cancel()
    await dispatcher.cut()
    if sending.done() and not sending.cancelled():
        sending.result()


def main() -> None:
    run_in_real_time()
    # The pipe is ours alone: what a library prints must not get between the frames.
    pipe = os.dup(1)
    os.dup2(2, 1)
    loop = precise_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_run(pipe))
    # Without the interpreter's leave-taking: gRPC's threads may hold calls that were given up.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
