"""`tidegate chat`: the terminal's side of a conversation."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.errors import CommandError
from tidegate.commands.options import RunDirOption
from tidegate.commands.running import need_stack
from tidegate.console import note

if TYPE_CHECKING:
    from tidegate.chat import Answer, ChatClient, ChatOptions, Conversation

HELP = """\
/reset   forget what was said      /exit   leave (or Ctrl-D)
/help    this list                 Ctrl-C  stop the answer"""
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"


def chat(
    model: Annotated[str, typer.Option("--model", "-m", metavar="NAME", help="Which served model.")] = "chat",
    system: Annotated[str, typer.Option("--system", help="A system message.")] = "",
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            min=0.0,
            max=2.0,
            help="0 (the default): always the likeliest token; higher: more variety.",
        ),
    ] = 0.0,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, help="Per answer; default: what the context has room for."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", help="A gateway elsewhere: http://HOST:9000.", envvar="TIDEGATE_GATEWAY_URL"),
    ] = None,
    run_dir: RunDirOption = None,
) -> None:
    """Talk to a model in the terminal, or pipe one prompt in.

    Ctrl-C stops the answer, not the program; /help lists what else there is. With piped input the whole of it
    is one prompt: the answer goes to standard output and the program ends. OPENAI_API_KEY is sent if set.
    """
    from tidegate.chat import ChatClient, ChatError, ChatOptions, Conversation

    base_url = (url or _gateway_of(run_dir)).rstrip("/").removesuffix("/v1")
    client = ChatClient(base_url, api_key=os.environ.get("OPENAI_API_KEY", ""))
    options = ChatOptions(model=model, temperature=temperature, max_tokens=max_tokens)
    try:
        with contextlib.closing(client):
            if sys.stdin.isatty():
                _converse(client, Conversation(system), options)
            else:
                _answer_once(client, Conversation(system), options)
    except ChatError as exc:
        raise CommandError(str(exc)) from exc


def _gateway_of(run_dir: Path | None) -> str:
    stack = need_stack(run_dir)
    if not stack.gateway_http:
        raise CommandError("the stack runs without a gateway; start it without --no-gateway, or give --url")
    return f"{stack.gateway_scheme}://{stack.gateway_http}"


def _answer_once(client: ChatClient, conversation: Conversation, options: ChatOptions) -> None:
    prompt = sys.stdin.buffer.read().decode(errors="replace").strip()
    if not prompt:
        raise CommandError("nothing on standard input; pipe a prompt in, or run it in a terminal")
    answer = client.start_answer()
    _print_answer(client, conversation, prompt, options, answer)
    if sys.stderr.isatty():
        note(f"{_DIM}{summary(answer)}{_PLAIN}")


def _converse(client: ChatClient, conversation: Conversation, options: ChatOptions) -> None:
    import readline  # noqa: F401  # gives input() history and line editing

    print(f"{_DIM}{options.model}; /help lists the commands{_PLAIN}")
    while True:
        try:
            # The marks tell readline that colours take no room on the line.
            line = input(f"\x01{_BOLD}\x02> \x01{_PLAIN}\x02").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print(f"\n{_DIM}/exit or Ctrl-D leaves{_PLAIN}")
            continue
        match line:
            case "":
                continue
            case "/exit" | "/quit":
                return
            case "/help":
                print(HELP)
            case "/reset":
                conversation.reset()
                print(f"{_DIM}forgotten{_PLAIN}")
            case _ if line.startswith("/"):
                print(f"{line.split()[0]} is no command; /help lists them")
            case _:
                _turn(client, conversation, line, options)


def _turn(client: ChatClient, conversation: Conversation, prompt: str, options: ChatOptions) -> None:
    from tidegate.chat import ChatError

    answer = client.start_answer()
    try:
        _print_answer(client, conversation, prompt, options, answer)
    except KeyboardInterrupt:
        print()
    except ChatError as exc:
        if answer.text:
            print()
        note(f"tidegate: {exc}")
        return
    print(f"{_DIM}{summary(answer)}{_PLAIN}")


def _print_answer(
    client: ChatClient, conversation: Conversation, prompt: str, options: ChatOptions, answer: Answer
) -> None:
    from tidegate.chat import printable

    with contextlib.closing(client.ask(conversation, prompt, options, answer)) as pieces:
        for piece in pieces:
            sys.stdout.write(printable(piece))
            sys.stdout.flush()
    print(flush=True)


def summary(answer: Answer) -> str:
    """'42 tokens · 58.3 tokens/s · first after 85 ms'; what is not known is left out."""
    parts = []
    if answer.num_tokens is not None:
        parts.append(f"{answer.num_tokens} tokens")
    if answer.tokens_per_s is not None:
        parts.append(f"{answer.tokens_per_s:.1f} tokens/s")
    if answer.ttft_ms is not None:
        parts.append(f"first after {answer.ttft_ms:.0f} ms")
    if answer.finish_reason == "length":
        parts.append("cut at the token limit")
    if answer.finish_reason == "stopped":
        parts.append("stopped")
    return " · ".join(parts)
