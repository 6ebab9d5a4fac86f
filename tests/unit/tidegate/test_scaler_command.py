"""`tidegate scaler`: what is sent, how answers read, and how `tidegate scale` keeps out of its way."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts import scaler_pb2 as pb
from contracts.stack import STACK_NAME, Stack
from scaler.acting import actuator
from scaler.errors import ScalerRefused, ScalerUnreachable
from scaler.serving.service_client import ScalerClient
from tidegate import cli
from tidegate.commands.errors import BadOption
from tidegate.commands.options import parse_duration
from tidegate.launch_errors import SettingsInvalid
from tidegate.settings import Settings
from tidegate.up import policy_text

NOW = 1_796_126_400.0
REASON = "chat 2→4: queue 37 ≥ 20 for 3 s, util 0.91; 1 pending counted; max 6"


def decision(**changed: Any) -> pb.Decision:
    fields = {
        "model": "chat",
        "at_unix_s": NOW - 12,
        "before": 2,
        "wanted": 4,
        "direction": "out",
        "reason": REASON,
    }
    return pb.Decision(**(fields | changed))


def scaler_status() -> pb.ScalerStatus:
    chat = pb.ModelStatus(
        model="chat",
        is_managed=True,
        wanted=4,
        counts=pb.Counts(ready=2, starting=2),
        signals=pb.Signals(
            utilization=pb.Reading(quality="good", value=0.914), queue=pb.Reading(quality="stale", value=37)
        ),
        decision=decision(),
        change=pb.Change(num_before=2, num_wanted=4, since_unix_s=NOW - 3),
        floors=[pb.Floor(num_instances=3, reason="reservation launch 3")],
        min_instances=1,
        max_instances=6,
        lead_s=8.5,
        forecast="on (season): 12 % better",
        last_error="no room for chat-4",
        last_error_unix_s=NOW - 120,
    )
    return pb.ScalerStatus(
        now_unix_s=NOW,
        policy_revision=3,
        tick_age_s=0.25,
        tick_s=1,
        target="triton 127.0.0.1:8001",
        models=[chat, pb.ModelStatus(model="embed", counts=pb.Counts(ready=1))],
        problems=["the node: no answer"],
    )


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stack with a scaler that takes everything; what it was sent."""
    for name in ("ADDRESS", "CA", "CERT", "KEY", "TOKEN_FILE"):
        monkeypatch.delenv(f"TIDEGATE_SCALER_{name}", raising=False)
    monkeypatch.setenv("TIDEGATE_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TZ", "UTC")
    stack = Stack(
        pid=os.getpid(),
        run_dir=str(tmp_path),
        node_socket="",
        triton_http="",
        triton_grpc="",
        triton_metrics="",
        gateway_http="",
        scaler_grpc="127.0.0.1:9002",
        models=[],
        pids={},
        started_unix_s=0.0,
    )
    (tmp_path / STACK_NAME).write_bytes(msgspec.json.encode(stack))
    requests: list[Any] = []

    async def call(self: ScalerClient, method: str, request: Any) -> Any:
        requests.append(request)
        replies = {
            "GetStatus": scaler_status(),
            "ScaleTo": pb.Override(num_instances=3, until_unix_s=NOW + 600),
            "Reserve": pb.Reservation(
                name="launch",
                next_start_unix_s=NOW + 3600,
                next_end_unix_s=NOW + 7200,
                floor_rises_unix_s=NOW + 3450,
            ),
            "SetPolicy": pb.PolicyRevision(revision=4),
            "GetPolicy": pb.Policy(
                revision=pb.PolicyRevision(revision=3),
                text="models: {}\n",
                history=[
                    pb.PolicyRevision(revision=2, at_unix_s=NOW, who="ada", why="night"),
                    pb.PolicyRevision(revision=3, at_unix_s=NOW),
                ],
            ),
            "ListReservations": pb.ListReservationsResponse(),
        }
        return replies.get(method)

    monkeypatch.setattr(ScalerClient, "_call", call)
    return requests


def test_status_shows_the_counts_and_tells_the_story_of_each_model(
    sent: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The last reason in full, what is in progress, the floors, and what failed."""
    assert cli.run(["scaler", "status"]) == 0
    shown = capsys.readouterr().out
    assert "policy revision 3, triton 127.0.0.1:8001, last tick 0.2 s ago (every 1 s)" in shown
    chat, embed = (row.split() for row in shown.splitlines()[3:5])
    assert chat[:9] == ["chat", "4", "1", "to", "6", "2", "2", "0", "0.91"]
    assert embed == ["embed", "-", "-", "1", "0", "0", "missing", "missing", "0.0", "s", "observed"]
    for text in (
        REASON,
        "decided 12 s ago",
        "in progress for 3 s: 2→4",
        "floor 3: reservation launch 3",
        "forecast on (season): 12 % better",
        "last failure 2 min ago: no room for chat-4",
        "problem: the node: no answer",
    ):
        assert text in shown


def test_scripts_get_one_object_in_which_what_is_absent_is_null(
    sent: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a pause by nobody since 1970."""
    assert cli.run(["scaler", "status", "chat", "--json"]) == 0
    chat = json.loads(capsys.readouterr().out)["models"][0]
    assert (chat["wanted"], chat["pause"], chat["override"], chat["counts"]["room"]) == (4, None, None, None)
    assert chat["decision"]["reason"] == REASON
    assert list(sent[0].models) == ["chat"]


def test_the_status_of_a_model_that_is_not_there_is_an_error(
    sent: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt name must not look like a model at rest."""
    assert cli.run(["scaler", "status", "caht"]) == 1
    assert "the scaler does not know caht; `tidegate scaler status` lists all" in capsys.readouterr().err


def test_what_is_said_is_sent_with_who_and_why(sent: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Pause, resume, a count by hand, a reservation, a cancel."""
    for line in (
        "pause chat --why debugging",
        "pause --all",
        "resume chat",
        "scale-to chat 3 --for 10m --why demo",
        "reserve chat 3 --from 13:00 --to 14:00 --zone Europe/Berlin --days mon,fri --name launch",
        "reserve chat 3 --from 13:00 --to 14:00",
        "cancel launch",
    ):
        assert cli.run(["scaler", *line.split()]) == 0
    pause, of_all, resume, scale_to, reserve, unnamed, cancel = sent
    assert (pause.model, pause.why, "@" in pause.who, of_all.model) == ("chat", "debugging", True, "")
    assert (resume.model, cancel.name) == ("chat", "launch")
    assert (scale_to.num_instances, scale_to.duration_s, scale_to.why) == (3, 600, "demo")
    assert (reserve.name, reserve.zone, list(reserve.days)) == ("launch", "Europe/Berlin", ["mon", "fri"])
    assert (unnamed.name, unnamed.zone, list(unnamed.days)) == ("chat-13:00-14:00", "UTC", [])
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "chat: paused until `tidegate scaler resume`"
    assert told[1] == "all models: paused until `tidegate scaler resume`"


@pytest.mark.parametrize("line", ["pause", "resume", "pause chat --all", "scale-to chat 3 --for soon"])
def test_a_command_that_is_not_clear_is_a_wrong_command_line(line: str, sent: list[Any]) -> None:
    """Exit code 2, and nothing is sent."""
    assert cli.run(["scaler", *line.split()]) == 2
    assert sent == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5 h", 5400), ("7d", 604_800)]
)
def test_spans_of_time_are_read_as_people_write_them(text: str, seconds: float) -> None:
    """A number alone is seconds."""
    assert parse_duration("--for", text) == seconds
    for wrong in ("", "soon", "-1s", "1w", "1e3", "nan"):
        with pytest.raises(BadOption, match="is no span of time; write 90s, 10m or 2h"):
            parse_duration("--for", wrong)


def test_watching_prints_a_line_per_decision(
    sent: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what makes it worth a look at its end; the end of the scaler is exit code 1."""

    async def watch(self: ScalerClient, models: Sequence[str] = ()) -> AsyncIterator[pb.Decision]:
        yield decision()
        yield decision(is_saturated=True, trouble="no room")
        raise ScalerUnreachable("the scaler stops")

    monkeypatch.setattr(ScalerClient, "watch", watch)
    assert cli.run(["scaler", "watch"]) == 1
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()
    assert first.endswith(f" {REASON}")
    assert second.endswith(f" {REASON}; SATURATED; failed: no room")
    assert captured.err == "tidegate: the scaler stops\n"
    cli.run(["scaler", "watch", "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[0])["wanted"] == 4


def test_policies_are_checked_without_a_stack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each problem on a line; exit code 1."""
    monkeypatch.setenv("TIDEGATE_RUN_DIR", str(tmp_path / "nothing"))
    path = tmp_path / "policy.yaml"
    path.write_text("models: {chat: {max_instances: 6}, embed: {}}")
    assert cli.run(["scaler", "policy", "check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: scales chat 1 to 6, embed 1 to 8\n"
    path.write_text("models: {chat: {min_instances: 4, max_instances: 2}, embed: {stepp: one}}")
    assert cli.run(["scaler", "policy", "check", str(path)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{path}: models.chat: min_instances = 4, must be from 0 to max_instances = 2",
        f"{path}: models.embed.stepp = 'one': no such key; did you mean step?",
    ]
    assert cli.run(["scaler", "policy", "check", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["is_valid"] is False
    assert cli.run(["scaler", "policy", "check", str(tmp_path / "none")]) == 1
    assert "none can't be read: No such file" in capsys.readouterr().err


def test_the_policy_is_shown_as_it_was_written_and_its_history_the_newest_first(
    sent: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """So that its output can be set again."""
    assert cli.run(["scaler", "policy", "show", "--revision", "3"]) == 0
    assert capsys.readouterr().out == "models: {}\n"
    assert cli.run(["scaler", "policy", "show", "--history"]) == 0
    newest, oldest = capsys.readouterr().out.splitlines()
    assert newest.startswith("revision 3, ")
    assert oldest.endswith("ada: night")
    (tmp_path / "p.yaml").write_text("models: {}")
    assert cli.run(["scaler", "policy", "set", str(tmp_path / "p.yaml"), "--expect", "3"]) == 0
    assert (sent[-1].text, sent[-1].expected_revision) == ("models: {}", 3)
    assert capsys.readouterr().out == "revision 4 is in force\n"


def test_a_refusal_is_the_scalers_own_words(
    sent: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1."""

    async def refuse(self: ScalerClient, method: str, request: Any) -> Any:
        raise ScalerRefused("'caht' is not scaled: the policy names chat")

    monkeypatch.setattr(ScalerClient, "_call", refuse)
    assert cli.run(["scaler", "pause", "caht"]) == 1
    assert capsys.readouterr().err == "tidegate: 'caht' is not scaled: the policy names chat\n"


def test_a_stack_without_a_scaler_and_no_stack_at_all_say_so(
    sent: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit codes 1 and 3, each with the way out."""
    path = tmp_path / STACK_NAME
    path.write_bytes(path.read_bytes().replace(b"127.0.0.1:9002", b""))
    assert cli.run(["scaler", "status"]) == 1
    assert "runs without a scaler; start it without --no-scaler" in capsys.readouterr().err
    path.unlink()
    assert cli.run(["scaler", "status"]) == 3
    assert "start one with `tidegate up`" in capsys.readouterr().err


# --- tidegate scale beside it ---


def test_scaling_by_hand_is_refused_where_the_policy_decides(
    sent: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the two ways to have it."""
    assert cli.run(["scale", "chat", "3"]) == 1
    said = capsys.readouterr().err
    assert "'chat' follows the scaler's policy, which would undo this" in said
    assert "`tidegate scaler scale-to chat 3 --for 1h`" in said
    assert "`tidegate scaler pause chat`" in said


@pytest.mark.parametrize("state", ["paused", "observed", "silent"])
def test_scaling_by_hand_goes_on_where_nobody_would_undo_it(
    state: str, sent: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused, not in the policy, or the scaler does not answer, which is said."""

    async def status(self: ScalerClient, models: Sequence[str] = ()) -> pb.ScalerStatus:
        if state == "silent":
            raise ScalerUnreachable("no answer from the scaler")
        paused = {"pause": pb.Pause(who="ada")} if state == "paused" else {}
        return pb.ScalerStatus(models=[pb.ModelStatus(model="chat", is_managed=state == "paused", **paused)])

    async def scale(*args: Any, **kwargs: Any) -> actuator.InstanceChange:
        return actuator.InstanceChange(
            model="chat",
            before=("chat-0",),
            after=("chat-0",),
            added=(),
            removed=(),
            ready_ms=1,
            in_place=True,
        )

    monkeypatch.setattr(ScalerClient, "status", status)
    monkeypatch.setattr("scaler.acting.by_hand.scale", scale)
    assert cli.run(["scale", "chat", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "chat: has 1 instance already (chat-0)\n"
    assert ("no answer from the scaler" in captured.err) is (state == "silent")


# --- tidegate up ---


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        (
            "models: {chat: {max_instances: 0}}",
            [],
            "models.chat.max_instances = 0, must be a whole number from 1",
        ),
        (None, [], "policy.yaml can't be read"),
        ("models: {}", ["--no-scaler"], "--policy needs a scaler; leave out --no-scaler"),
    ],
)
def test_up_refuses_a_bad_policy_before_anything_starts(
    text: str | None,
    options: list[str],
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not after a minute of loading weights."""
    path = tmp_path / "policy.yaml"
    if text is not None:
        path.write_text(text)
    assert cli.run(["up", "--run-dir", str(tmp_path / "run"), "--policy", str(path), *options]) == 1
    said = capsys.readouterr().err
    assert problem in said
    assert "starting" not in said
    assert "stopping" not in said


def test_up_says_whose_policy_the_scaler_follows(tmp_path: Path) -> None:
    """None, a file's, or one that was kept from before, which a file overrules only where it is new."""
    path = tmp_path / "policy.yaml"
    assert policy_text(None, tmp_path).startswith("no policy, so it observes and changes nothing")
    assert policy_text(path, tmp_path) == f"policy of {path}"
    (tmp_path / "state.json").touch()
    assert policy_text(None, tmp_path) == f"policy, pauses and reservations as kept in {tmp_path}"
    assert policy_text(path, tmp_path).endswith(f", and {path} where it was edited since")


def test_the_scalers_port_is_checked_with_the_others_and_only_where_there_is_one() -> None:
    """Each port once."""
    assert Settings().ports["scaler_port"] == 9002
    assert "scaler_port" not in Settings(with_scaler=False).ports
    with pytest.raises(SettingsInvalid, match="scaler_port = 9000 is gateway_port too"):
        Settings(scaler_port=9000)
