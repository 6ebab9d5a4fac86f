"""What Locust opens: `locust -f loadtest/locustfile.py --host http://127.0.0.1:9000`, with its web UI or without.

Users here wait for their answers, so a slow server slows them down (closed load). `--shape wave -u 30 -t 10m`
changes their number over time. `--plan examples/loadtest/peak.yaml` sends by the clock and ends in a verdict.
"""

from __future__ import annotations

from locust import between, events, task

from loadtest.planning.lengths import Lognormal, Uniform
from loadtest.planning.users import ChatUser as Chat
from loadtest.planning.users import EmbedUser as Embed
from loadtest.planning.users import GenerateUser as Generate
from loadtest.planning.users import TensorUser as Tensors
from loadtest.planning.users import Turns
from loadtest.shell.options import add_arguments, follow
from loadtest.shell.users import AskingUser, close_desk, make_desk, open_desk

events.init_command_line_parser.add_listener(add_arguments)
events.init.add_listener(lambda environment, **_: follow(environment))
events.init.add_listener(make_desk)
events.test_start.add_listener(open_desk)
events.test_stop.add_listener(close_desk)
events.quitting.add_listener(close_desk)

FEW_WORDS = Lognormal(kind="lognormal", median=20, sigma=0.5, max=100)
AN_ANSWER = Lognormal(kind="lognormal", median=24, sigma=0.4, max=96)


class ChatUser(AskingUser):
    """Asks short questions over OpenAI's HTTP API and reads the stream to its end."""

    weight = 4
    wait_time = between(1, 3)
    short = Chat(
        kind="openai_chat", name="chat", service="chat", prompt_tokens=FEW_WORDS, output_tokens=AN_ANSWER
    )

    @task
    def short_question(self) -> None:
        self.ask(self.short)


class GrpcChatUser(AskingUser):
    """Streams the same model's text over KServe gRPC."""

    weight = 2
    wait_time = between(1, 3)
    needs_grpc = True
    short = Generate(
        kind="grpc_generate",
        name="chat-grpc",
        service="chat",
        prompt_tokens=FEW_WORDS,
        output_tokens=AN_ANSWER,
    )

    @task
    def short_text(self) -> None:
        self.ask(self.short)


class LongContextUser(AskingUser):
    """Nine short questions, then one about a long document."""

    wait_time = between(2, 5)
    short = Chat(
        kind="openai_chat",
        name="before-long",
        service="chat",
        prompt_tokens=FEW_WORDS,
        output_tokens=AN_ANSWER,
    )
    document = Chat(
        kind="openai_chat",
        name="long-document",
        service="chat",
        prompt_tokens=Uniform(kind="uniform", min=500, max=1500),
        output_tokens=AN_ANSWER,
    )

    @task(9)
    def short_question(self) -> None:
        self.ask(self.short)

    @task(1)
    def about_a_document(self) -> None:
        self.ask(self.document)


class SessionUser(AskingUser):
    """Holds conversations of three to six turns, which begin with a system prompt that all share."""

    wait_time = between(2, 5)
    conversation = Chat(
        kind="openai_chat",
        name="session",
        service="chat",
        turns=Turns(min=3, max=6),
        think_s=2,
        system_tokens=150,
        prompt_tokens=FEW_WORDS,
        output_tokens=AN_ANSWER,
    )

    @task
    def hold_a_conversation(self) -> None:
        self.ask(self.conversation)


class EmbedUser(AskingUser):
    """Embeds one short text a call over OpenAI's HTTP API."""

    weight = 2
    wait_time = between(0.1, 0.5)
    text = Embed(kind="openai_embeddings", name="embed", service="embed", prompt_tokens=FEW_WORDS)

    @task
    def one_text(self) -> None:
        self.ask(self.text)


class GrpcEmbedUser(AskingUser):
    """Embeds over KServe gRPC: one answer a call, in Triton's dynamic batches."""

    weight = 2
    wait_time = between(0.1, 0.5)
    needs_grpc = True
    text = Tensors(kind="grpc_tensors", name="embed-grpc", service="embed", prompt_tokens=FEW_WORDS)

    @task
    def one_text(self) -> None:
        self.ask(self.text)
