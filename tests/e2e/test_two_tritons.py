"""Two real Tritons behind one gateway: calls spread, one is killed, and what that costs whom."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
import pytest_asyncio
from sqlalchemy import func, select
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.testing import RunningGateway, free_port, running_gateway
from ledger import schema
from ledger.call_query import MAX_PAGE_ROWS, CallFilter, attempts, find
from ledger.calls import CallRow
from ledger.store import Store, sqlite_url
from tests.e2e.plain_triton import PlainTriton, plain_triton, write_plain_model
from tests.e2e.scripted_models import EMBEDDING_DIM, PIECES, write_chat, write_embed
from tests.e2e.support import Ask, closed_loop, echo, echo_stub
from tidegate.testing import free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

ANSWER = "".join(PIECES)
STEP_TIMEOUT_S = 60.0


class Place:
    """Ports at which a Triton runs; it may be killed, and another one started there."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._ports = free_ports(3)
        self._stack = contextlib.ExitStack()
        self._triton: PlainTriton | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports[1]}"

    def start(self) -> None:
        """Nothing where one runs."""
        if self._triton is None:
            made = plain_triton(self._repository, "chat", "embed", "echo", ports=self._ports)
            self._triton = self._stack.enter_context(made)

    def kill(self) -> None:
        assert self._triton is not None
        self._triton.kill()
        self._triton = None

    def close(self) -> None:
        self._stack.close()


@dataclass
class Rig:
    """Both Tritons run when a test begins."""

    places: tuple[Place, Place]
    gateway: RunningGateway
    door: str
    """KServe's gRPC."""
    client: openai.AsyncOpenAI
    store: Store
    waiting_room: Path

    def rows_of(self, place: Place, outcome: str) -> list[CallRow]:
        """Attempts there, in the call log."""
        wanted = CallFilter(endpoint=place.address, outcome=outcome)
        return list(find(self.store, wanted, limit=MAX_PAGE_ROWS).calls)

    def num_of(self, place: Place, outcome: str) -> int:
        calls = schema.calls.c
        same = (calls.endpoint == place.address, calls.outcome == outcome)
        with self.store.read() as connection:
            return connection.scalar(select(func.count()).select_from(schema.calls).where(*same)) or 0

    def num_answered(self) -> int:
        return sum(self.num_of(place, "ok") for place in self.places)

    async def more_answers_at(self, place: Place, num: int) -> None:
        """Returns when so many more calls were answered there."""
        wanted = self.num_of(place, "ok") + num
        await until(lambda: self.num_of(place, "ok") >= wanted)

    async def is_ejected(self, place: Place) -> bool:
        async with httpx.AsyncClient(trust_env=False) as http:
            figures = (await http.get(f"{self.gateway.url}/metrics")).text
        return f'tidegate_gateway_upstream_ejected{{endpoint="{place.address}"}} 1.0' in figures

    async def until_waiting(self, num: int) -> None:
        """Returns when so many requests have come to a model that waits."""
        await until(lambda: len(list(self.waiting_room.iterdir())) == num)

    def let_all_go_on(self) -> None:
        for place in self.waiting_room.iterdir():
            place.unlink()

    async def stream_http(self, text: str) -> AsyncIterator[str]:
        """The pieces of the answer."""
        stream = await self.client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": text}], stream=True
        )
        async for chunk in stream:
            if piece := chunk.choices[0].delta.content:
                yield piece

    async def stream_grpc(self, text: str) -> AsyncIterator[str]:
        """Likewise."""
        async with grpc.aio.insecure_channel(self.door) as channel:
            stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
            await stream.write(chat_request(text))
            await stream.done_writing()
            async for message in stream:
                assert message.error_message == ""
                yield message.infer_response.raw_output_contents[0][4:].decode()


async def until(is_so: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(STEP_TIMEOUT_S):
        while True:
            answer = is_so()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.05)


def chat_request(text: str) -> Any:
    """As a client of Triton's vLLM backend sends it."""
    request = service_pb2.ModelInferRequest(model_name="chat")
    for name, datatype, raw in (
        ("text_input", "BYTES", len(text).to_bytes(4, "little") + text.encode()),
        ("stream", "BOOL", b"\1"),
    ):
        request.inputs.add(name=name, datatype=datatype, shape=[1])
        request.raw_input_contents.append(raw)
    return request


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("two")
    write_chat(made / "repository", made / "waiting")
    write_embed(made / "repository")
    write_plain_model(made / "repository", "echo")
    return made


@pytest.fixture(scope="module")
def places(folder: Path) -> Iterator[tuple[Place, Place]]:
    with (
        contextlib.closing(Place(folder / "repository")) as one,
        contextlib.closing(Place(folder / "repository")) as two,
    ):
        yield one, two


@pytest_asyncio.fixture(loop_scope="module")
async def rig(folder: Path, places: tuple[Place, Place], tmp_path: Path) -> AsyncIterator[Rig]:
    await asyncio.gather(*(asyncio.to_thread(place.start) for place in places))
    url = sqlite_url(tmp_path / "ledger.db")
    with contextlib.closing(Store.open(url)) as store, free_port() as port:
        settings = {"ledger_url": url, "grpc_port": port, "batch_models": ["echo"]}
        async with (
            running_gateway(places[0].address, more_tritons=[places[1].address], **settings) as gateway,
            openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
        ):
            yield Rig(places, gateway, f"127.0.0.1:{port}", client, store, folder / "waiting")


def embeds(client: openai.AsyncOpenAI, text: str) -> Ask:
    async def ask() -> None:
        answer = await client.embeddings.create(model="embed", input=text, encoding_format="float")
        assert answer.data[0].embedding == [float(len(text))] * EMBEDDING_DIM

    return ask


def chats(client: openai.AsyncOpenAI) -> Ask:
    """Not streamed: the client has nothing before it has all."""

    async def ask() -> None:
        answer = await client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": "hi"}]
        )
        assert answer.choices[0].message.content == ANSWER

    return ask


def infers(stub: service_pb2_grpc.GRPCInferenceServiceStub, number: int) -> Ask:
    async def ask() -> None:
        assert await echo(stub, "echo", number) == number

    return ask


async def test_calls_one_after_the_other_go_to_both_in_turn(rig: Rig) -> None:
    """Of two that have nothing to do the one is asked that has rested longer."""
    for _ in range(10):
        await embeds(rig.client, "text")()
        await chats(rig.client)()
    await until(lambda: rig.num_answered() == 20)
    assert [rig.num_of(place, "ok") for place in rig.places] == [10, 10]


async def test_a_triton_that_is_killed_under_load_fails_no_call_and_serves_again_when_it_is_back(
    rig: Rig,
) -> None:
    """Embeddings, chats and inference at both doors: what it had is asked again at the other, it is ejected, and
    a new one at its address gets its share."""
    dead, other = rig.places
    async with echo_stub(rig.door) as stub:
        asks = [infers(stub, 1), infers(stub, 2), chats(rig.client), chats(rig.client)]
        asks += [embeds(rig.client, "one"), embeds(rig.client, "three")]
        async with closed_loop(asks) as outcomes:
            await asyncio.gather(*(rig.more_answers_at(place, 50) for place in rig.places))
            dead.kill()
            await until(lambda: rig.is_ejected(dead))
            await rig.more_answers_at(other, 50)
            await asyncio.to_thread(dead.start)
            await rig.more_answers_at(dead, 50)
    assert outcomes.failures == []
    await until(lambda: rig.num_answered() == outcomes.num_ok)
    lost = rig.rows_of(dead, "error")
    assert {row.error_code for row in lost} == {"upstream_unavailable"}
    for row in lost:
        (*_, last) = attempts(rig.store, row.request_id)
        assert (last.endpoint, last.outcome) == (other.address, "ok")


async def read_first(stream: AsyncIterator[str]) -> str:
    async with asyncio.timeout(STEP_TIMEOUT_S):
        return await anext(stream)


async def read_all(stream: AsyncIterator[str]) -> str:
    """What was left of the answer, and the name of the error that ended it."""
    text = ""
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            async for piece in stream:
                text += piece
    except openai.APIError as exc:
        return f"{text} {exc.code}"
    except grpc.aio.AioRpcError as exc:
        return f"{text} {exc.code().name}"
    return text


async def test_a_stream_that_has_sent_text_ends_with_an_error_and_is_not_begun_again(rig: Rig) -> None:
    """Two at each door, one of each pair at either Triton: the killed one's are told so, the others end whole."""
    dead, other = rig.places
    streams = [rig.stream_http("wait before 1") for _ in range(2)]
    streams += [rig.stream_grpc("wait before 1") for _ in range(2)]
    for stream in streams:
        assert await read_first(stream) == PIECES[0]
    await rig.until_waiting(4)
    dead.kill()
    reading = [asyncio.create_task(read_all(stream)) for stream in streams]
    await until(lambda: sum(task.done() for task in reading) == 2)
    rig.let_all_go_on()
    rest = "".join(PIECES[1:])
    ends = Counter(await asyncio.gather(*reading))
    assert ends == {rest: 2, " upstream_unavailable": 1, " UNAVAILABLE": 1}
    await until(lambda: rig.num_answered() == 2)
    assert [row.attempt for row in rig.rows_of(dead, "error")] == [1, 1]
    assert [row.attempt for row in rig.rows_of(other, "ok")] == [1, 1]


async def test_a_stream_that_has_sent_nothing_yet_is_begun_again_at_the_other(rig: Rig) -> None:
    """Its client sees one answer, from the first piece on."""
    dead, other = rig.places
    streams = [rig.stream_http("wait before 0") for _ in range(2)]
    streams += [rig.stream_grpc("wait before 0") for _ in range(2)]
    reading = []
    for number, stream in enumerate(streams, 1):
        reading.append(asyncio.create_task(read_all(stream)))
        await rig.until_waiting(number)
    dead.kill()
    await rig.until_waiting(6)
    rig.let_all_go_on()
    assert await asyncio.gather(*reading) == [ANSWER] * 4
    await until(lambda: rig.num_answered() == 4)
    assert [row.attempt for row in rig.rows_of(dead, "error")] == [1, 1]
    assert sorted(row.attempt for row in rig.rows_of(other, "ok")) == [1, 1, 2, 2]
