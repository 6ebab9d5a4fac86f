"""`tidegate chat` in a pseudo-terminal and in a pipe, against a gateway that says what it is asked to."""

import http.server
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

pytestmark = pytest.mark.integration

CHAT = [sys.executable, "-c", "from tidegate.cli import main; main()", "chat", "--url"]
DEADLINE_S = 30


class EchoGateway(http.server.BaseHTTPRequestHandler):
    """Streams the last message back, word by word; for "forever" it does not stop until the client leaves."""

    protocol_version = "HTTP/1.1"
    asked: list = []  # noqa: RUF012  # one server per test session
    left = threading.Event()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        prompt = body["messages"][-1]["content"]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            self._stream(prompt)
        except OSError:
            self.left.set()
        self.close_connection = True

    def _stream(self, prompt):
        words = [f"{word} " for word in prompt.split()]
        while prompt == "forever":
            self._event({"choices": [{"delta": {"content": "tick "}, "finish_reason": None}]})
            time.sleep(0.02)
        for word in words:
            self._event({"choices": [{"delta": {"content": word}, "finish_reason": None}]})
        self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self._event({"choices": [], "usage": {"completion_tokens": len(words)}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *args):
        pass


@pytest.fixture
def gateway():
    """Its base URL."""
    EchoGateway.asked, EchoGateway.left = [], threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EchoGateway) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, argv):
        self.screen, follower = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "INPUTRC": "/dev/null"}
        self.process = subprocess.Popen(
            argv,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env=env,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(follower)
        self.text = ""

    def type(self, text):
        os.write(self.screen, text.encode())

    def wait_for(self, wanted):
        """Reads until `wanted` shows; forgets what was before it."""
        deadline_s = time.monotonic() + DEADLINE_S
        while wanted not in self.text:
            if not select.select([self.screen], [], [], max(0, deadline_s - time.monotonic()))[0]:
                raise AssertionError(f"no {wanted!r} within {DEADLINE_S} s, but {self.text!r}")
            try:
                self.text += os.read(self.screen, 4096).decode()
            except OSError:  # the program has ended
                raise AssertionError(f"ended without {wanted!r}: {self.text!r}") from None
        seen, _, self.text = self.text.partition(wanted)
        return seen

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.screen)


def _take_terminal():
    """The pseudo-terminal becomes the controlling one, so that Ctrl-C is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(gateway):
    started = Terminal([*CHAT, gateway])
    started.wait_for("/help lists the commands")
    started.wait_for("> ")
    yield started
    started.close()


def test_a_conversation_remembers_until_it_is_reset(terminal):
    """Multi-turn, with figures after each answer."""
    terminal.type("ebb and flow\n")
    terminal.wait_for("3 tokens")
    terminal.wait_for("first after")
    terminal.type("again\n")
    terminal.wait_for("1 tokens")
    assert [turn["content"] for turn in EchoGateway.asked[1]["messages"]] == [
        "ebb and flow",
        "ebb and flow ",
        "again",
    ]

    terminal.type("/reset\n")
    terminal.wait_for("forgotten")
    terminal.type("new\n")
    terminal.wait_for("1 tokens")
    assert [turn["content"] for turn in EchoGateway.asked[2]["messages"]] == ["new"]


def test_control_c_stops_the_answer_and_not_the_program(terminal):
    """The gateway sees the client leave, so the engine stops too."""
    terminal.type("forever\n")
    terminal.wait_for("tick tick tick")
    terminal.type("\x03")
    terminal.wait_for("stopped")
    assert EchoGateway.left.wait(DEADLINE_S)

    terminal.type("still here\n")
    terminal.wait_for("2 tokens")


def test_control_c_at_the_prompt_says_how_to_leave_and_control_d_leaves(terminal):
    """A hasty second Ctrl-C must not end the conversation."""
    terminal.type("half a li\x03")
    terminal.wait_for("/exit or Ctrl-D leaves")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.process.wait(DEADLINE_S) == 0
    assert EchoGateway.asked == []


def test_commands_are_no_prompts(terminal):
    """A typing error is not sent to the model either."""
    terminal.type("/help\n")
    terminal.wait_for("/reset")
    terminal.type("/rest\n")
    terminal.wait_for("/rest is no command")
    terminal.type("/exit\n")
    assert terminal.process.wait(DEADLINE_S) == 0
    assert EchoGateway.asked == []


def test_a_piped_prompt_is_answered_once(gateway):
    """All of standard input is one prompt; standard output has the answer and nothing else."""
    done = subprocess.run(
        [*CHAT, gateway, "--system", "Be brief."],
        input="ebb\nflow\n",
        capture_output=True,
        text=True,
        check=True,
    )

    assert (done.stdout, done.stderr) == ("ebb flow \n", "")
    assert EchoGateway.asked[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ebb\nflow"},
    ]


def test_a_piped_prompt_that_is_interrupted_exits_as_a_shell_expects(gateway):
    """130 is 128 + SIGINT."""
    with subprocess.Popen(
        [*CHAT, gateway], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdin.write("forever")
        process.stdin.close()
        assert process.stdout.read(5) == "tick "
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert process.stderr.read() == ""


def test_an_empty_pipe_and_a_dead_gateway_are_one_line(gateway):
    """Exit code 1."""
    empty = subprocess.run([*CHAT, gateway], input="", capture_output=True, text=True, check=False)
    dead = subprocess.run(
        [*CHAT, "http://127.0.0.1:9"], input="x", capture_output=True, text=True, check=False
    )

    assert (empty.returncode, dead.returncode) == (1, 1)
    assert empty.stderr.startswith("tidegate: nothing on standard input")
    assert dead.stderr.startswith("tidegate: no gateway on http://127.0.0.1:9")
