"""Every request that comes by gRPC has one row in the call log, also one that never gets to Triton."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.authentication import Authenticator
from gateway.call import Call
from gateway.grpc_door import MAX_ID_CHARS, GrpcDoor
from gateway.limit_counters import Counters
from gateway.limiter import Limiter
from gateway.pipeline import Pipeline
from gateway.principal import NO_LIMITS, Limits
from gateway.route_table import RouteTable
from ledger.calls import CallRow


class FakeUpstream:
    """Triton's end of a stream."""

    def __init__(self) -> None:
        self.replies: asyncio.Queue[bytes | object] = asyncio.Queue()
        self.requests: list[bytes] = []

    def __call__(self, metadata: object) -> FakeUpstream:
        return self

    def stream_stream(self, path: str) -> FakeUpstream:
        return self

    async def read(self) -> bytes | object:
        return await self.replies.get()

    async def write(self, request: bytes) -> None:
        self.requests.append(request)

    async def done_writing(self) -> None:
        pass

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    def cancel(self) -> None:
        pass

    def done(self) -> bool:
        return False


class FakeRpc:
    """A unary call that is answered when its test says so."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def __call__(self, request: bytes, metadata: object) -> FakeRpc:
        return self

    def add_done_callback(self, callback: Any) -> None:
        self.reply.add_done_callback(callback)

    def __await__(self) -> Any:
        return self.reply.__await__()

    async def trailing_metadata(self) -> tuple[()]:
        return ()


class FakeUpstreams:
    """One Triton, and the lease of it."""

    endpoint = "t:1"

    def __init__(self, stream: FakeUpstream) -> None:
        self.stream = stream
        self.rpc: FakeRpc | None = None

    def unary(self, path: str) -> FakeRpc:
        self.rpc = FakeRpc()
        return self.rpc

    @property
    def triton(self) -> FakeUpstreams:
        return self

    def channel(self) -> FakeUpstream:
        return self.stream

    def pick(self, **kwargs: object) -> FakeUpstreams:
        return self

    def may_retry(self, error: object, tried: object) -> bool:
        return False

    def done(self, *args: object) -> None:
        pass


class FakeContext:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    async def abort(self, code: grpc.StatusCode, details: str, metadata: object = ()) -> NoReturn:
        raise grpc.aio.AbortError(details)


class Rig:
    def __init__(self, limits: Limits = NO_LIMITS) -> None:
        self.rows: list[CallRow] = []
        self.upstream = FakeUpstream()
        self.context = FakeContext()
        self.upstreams = FakeUpstreams(self.upstream)
        self.pipeline = Pipeline(
            Authenticator(None),
            Limiter(Counters.in_memory(), lambda service: limits),
            RouteTable(["chat"]),
            self.rows.append,
        )
        self.door = GrpcDoor(self.pipeline, self.upstreams)  # type: ignore[arg-type]

    def stream(self, *ids: str) -> asyncio.Task[None]:
        async def requests() -> AsyncIterator[bytes]:
            for request_id in ids:
                yield pb.ModelInferRequest(model_name="chat", id=request_id).SerializeToString()
            await asyncio.Event().wait()

        return asyncio.create_task(self.door._stream(requests(), self.context))

    def reply(self, request_id: str, error: str = "") -> None:
        response = pb.ModelStreamInferResponse(error_message=error)
        response.infer_response.id = request_id
        response.infer_response.parameters["triton_final_response"].bool_param = True
        self.upstream.replies.put_nowait(response.SerializeToString())


async def settled(number_of: list[Any], count: int) -> None:
    async with asyncio.timeout(5):
        while len(number_of) < count:  # noqa: ASYNC110 - a list tells nobody
            await asyncio.sleep(0.001)


async def test_a_stream_that_is_left_while_its_request_waits_for_its_turn_has_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call was not with Triton yet, so nobody ended it: no row, as if it had never come."""
    rig = Rig()
    waits = asyncio.Event()

    async def wait_turn(call: Call) -> None:
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.pipeline, "must_wait", lambda call: True)
    monkeypatch.setattr(rig.pipeline, "wait_turn", wait_turn)
    stream = rig.stream("r1")
    await waits.wait()
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)
    await settled(rig.rows, 1)
    assert [(row.request_id, row.outcome) for row in rig.rows] == [("r1", "cancelled")]


async def test_a_defect_is_an_error_on_the_stream_and_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ZeroDivisionError ended the task that sends: the client waited for ever, and no row said why."""
    rig = Rig()
    monkeypatch.setattr(rig.pipeline, "route", lambda *args, **kwargs: 1 / 0)
    stream = rig.stream("r1", "r2")
    await settled(rig.context.written, 2)
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)
    answers = [pb.ModelStreamInferResponse.FromString(each).error_message for each in rig.context.written]
    assert answers == ["the gateway failed; its log says more"] * 2
    assert [row.outcome for row in rig.rows] == ["error", "error"]


async def test_a_defect_in_a_unary_call_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row said "ok" with status 0."""
    rig = Rig()
    monkeypatch.setattr(rig.pipeline, "route", lambda *args, **kwargs: 1 / 0)
    request = pb.ModelInferRequest(model_name="chat").SerializeToString()
    with pytest.raises(grpc.aio.AbortError, match="the gateway failed"):
        await rig.door._infer(request, rig.context)
    await settled(rig.rows, 1)
    assert [(row.outcome, row.status) for row in rig.rows] == [("error", grpc.StatusCode.INTERNAL.value[0])]


async def test_a_final_reply_without_an_id_ends_the_request_that_had_none() -> None:
    """Of "a" and one without, the one without is done first: it was "a" that was taken for done."""
    rig = Rig()
    stream = rig.stream("a", "")
    await settled(rig.upstream.requests, 2)
    rig.reply("")
    await settled(rig.rows, 1)
    assert rig.rows[0].request_id != "a"
    rig.reply("a")
    await settled(rig.rows, 2)
    assert rig.rows[1].request_id == "a"
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)


async def test_an_id_of_megabytes_is_cut_in_the_log_and_whole_on_the_wire() -> None:
    """3 MB, buffered with up to 50,000 rows; the reply still finds its request."""
    rig = Rig()
    long = "x" * 3_000_000
    stream = rig.stream(long)
    await settled(rig.upstream.requests, 1)
    assert long.encode() in rig.upstream.requests[0]
    rig.reply(long)
    await settled(rig.rows, 1)
    assert rig.rows[0].request_id == "x" * MAX_ID_CHARS
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)


async def test_a_unary_call_that_its_client_left_keeps_its_slot_while_triton_works_on() -> None:
    """Triton can't be told of a cancel (fact 12): with the slot free at once, a client that cancels and asks again
    had as many calls at work in Triton as it liked."""
    rig = Rig(Limits(concurrent=1))
    request = pb.ModelInferRequest(model_name="chat").SerializeToString()
    asked = asyncio.create_task(rig.door._infer(request, rig.context))
    async with asyncio.timeout(5):
        while rig.upstreams.rpc is None:  # noqa: ASYNC110 - it is no event
            await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await settled(rig.rows, 1)
    assert rig.rows[0].outcome == "cancelled"
    with pytest.raises(grpc.aio.AbortError, match="1 requests run at a time"):
        await rig.door._infer(request, rig.context)
    rig.upstreams.rpc.reply.set_result(b"late")
    await rig.door.close()
    again = asyncio.create_task(rig.door._infer(request, rig.context))
    await asyncio.sleep(0.01)
    rig.upstreams.rpc.reply.set_result(b"answer")
    assert await again == b"answer"
