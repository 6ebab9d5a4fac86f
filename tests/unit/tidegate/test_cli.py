"""The command line: one-line errors, exit codes, values of options."""

import json

import msgspec
import psutil
import pytest

import benchmarks
from benchmarks.report import Figure, Report
from contracts.stack import STACK_NAME, ServedModel, Stack
from scaler.acting.actuator import InstanceChange
from scaler.errors import DrainTimeout
from tidegate import cli
from tidegate.commands import scale as scale_command
from tidegate.commands.errors import BadOption
from tidegate.commands.options import parse_counts, parse_size
from tidegate.console import count_text, size_text
from tidegate.doctor import Check
from tidegate.launch_errors import PortTaken
from tidegate.models.testing import write_hf_folder

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _places(tmp_path, monkeypatch):
    """No test may see this machine's models, stack or settings."""
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TIDEGATE_RUN_DIR", str(tmp_path / "run"))
    for name in ("TIDEGATE_DEBUG", "TIDEGATE_POOL_BYTES", "TIDEGATE_GATEWAY_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def write_stack(tmp_path):
    """Puts a stack.json there; `pid` decides whether it counts as running."""

    def write(pid, **changes):
        stack = Stack(
            pid=pid,
            run_dir=str(tmp_path / "run"),
            node_socket=str(tmp_path / "run" / "control.sock"),
            triton_http="127.0.0.1:1",
            triton_grpc="127.0.0.1:2",
            triton_metrics="127.0.0.1:3",
            gateway_http="127.0.0.1:4",
            models=[ServedModel(name="chat", kind="generate", weights="w", path="/nowhere")],
            pids={"node": pid},
            started_unix_s=0.0,
        )
        (tmp_path / "run").mkdir(exist_ok=True)
        data = msgspec.json.encode(msgspec.structs.replace(stack, **changes))
        (tmp_path / "run" / STACK_NAME).write_bytes(data)

    return write


def dead_pid():
    return next(pid for pid in range(2**22 - 1, 0, -1) if not psutil.pid_exists(pid))


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("2GiB", 2 * GIB),
        ("2gib", 2 * GIB),
        ("512MiB", 512 << 20),
        ("1.5 GiB", 3 * GIB // 2),
        ("2GB", 2_000_000_000),
        ("4096", 4096),
        ("4096B", 4096),
        ("1k", 1000),
        ("0", 0),
    ],
)
def test_sizes_are_read_as_people_write_them(text, num_bytes):
    """Binary with an i, decimal without."""
    assert parse_size("--pool-bytes", text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2 XiB", "1e9", "2GiB2", "nan", "inf", "٣"])
def test_what_is_no_size_is_refused_with_an_example(text):
    """The option is named, for there may be several."""
    with pytest.raises(BadOption, match=r"--pool-bytes = .*write 2GiB"):
        parse_size("--pool-bytes", text)


def test_counts_are_read_per_model():
    """As TIDEGATE_SPARES has them."""
    assert parse_counts("--spares", ["chat=2", "embed=0"]) == {"chat": 2, "embed": 0}
    for wrong in ("chat", "=2", "chat=", "chat=-1", "chat=x"):
        with pytest.raises(BadOption, match="must read like chat=2"):
            parse_counts("--spares", [wrong])


def test_sizes_and_counts_are_printed_short():
    """Three figures are enough for a table."""
    assert [size_text(n) for n in (0, 1023, 1536, 5 << 20, 3 * GIB, 1 << 50)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "1024.0 TiB",
    ]
    assert [count_text(n) for n in (7, 1200, 134_515_008, 8_030_261_248)] == [
        "7",
        "1.2 k",
        "134.5 M",
        "8.0 B",
    ]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["frobnicate"], "No such command 'frobnicate'; `tidegate --help` tells more"),
        (["scale", "chat"], "`tidegate scale --help` tells more"),
        (["scale", "chat", "0"], "`tidegate scale --help` tells more"),
        (["scale", "chat", "two"], "`tidegate scale --help` tells more"),
        (["up", "--no-such-option"], "`tidegate up --help` tells more"),
        (["up", "--pool-bytes", "lots"], "--pool-bytes = 'lots' is no size"),
        (["up", "--spares", "chat"], "--spares = 'chat'"),
        (["bench", "nothing"], "no benchmark 'nothing'; there are generate"),
        (["models", "add", "x"], "`tidegate models add --help` tells more"),
        (["chat", "--temperature", "7"], "`tidegate chat --help` tells more"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(args, said, capsys):
    """With the help that fits."""
    assert cli.run(args) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tidegate: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


@pytest.mark.parametrize("args", [["status"], ["scale", "chat", "2"], ["chat"]])
def test_commands_on_a_stack_that_does_not_run_end_with_exit_code_3(args, capsys, tmp_path):
    """So that a script can tell it from a failure."""
    assert cli.run(args) == 3
    assert capsys.readouterr().err == (
        f"tidegate: no stack runs in {tmp_path / 'run'}; start one with `tidegate up`, "
        "or name its folder with --run-dir\n"
    )


def test_what_a_killed_launcher_left_behind_does_not_count_as_running(write_stack, capsys):
    """kill -9 leaves stack.json."""
    write_stack(dead_pid())

    assert cli.run(["status"]) == 3
    assert "no stack runs" in capsys.readouterr().err


def test_a_foreign_stack_file_is_named(tmp_path, capsys):
    """Another program's, or a half-written one."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / STACK_NAME).write_text("{}")

    assert cli.run(["status"]) == 1
    assert f"{tmp_path / 'run' / STACK_NAME} can't be read" in capsys.readouterr().err


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"], ["models"], ["models", "--help"]])
def test_help_is_on_standard_output_and_no_failure(args, capsys):
    """Without arguments too."""
    assert cli.run(args) == 0
    assert "Usage: tidegate" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "scale",
        "models",
        "chat",
        "doctor",
        "status",
        "pool",
        "scaler",
        "loadtest",
        "launch-check",
        "capacity",
        "bench",
    ],
)
def test_every_command_has_a_summary_of_one_line(command, capsys, monkeypatch):
    """At 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    cli.run(["--help"])

    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"│ {command} "))
    assert lines[at].rstrip(" │").endswith(".")


def test_models_are_added_listed_verified_and_removed(tmp_path, capsys):
    """The whole round, in JSON."""
    folder = write_hf_folder(tmp_path / "mine")
    assert cli.run(["models", "add", "mine", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "generate"

    assert cli.run(["models", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["models"]
    assert (listed["name"], listed["num_parameters"], listed["path"]) == ("mine", 17, str(folder))
    assert listed["num_bytes"] == sum(file.stat().st_size for file in folder.iterdir())

    assert cli.run(["models", "verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"checked": ["mine"], "wrong": {}}

    assert cli.run(["models", "remove", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": "mine", "files_deleted": False}
    assert folder.is_dir()


def test_the_list_of_models_is_a_table(tmp_path, capsys, monkeypatch):
    """For people: no JSON, no paths of ours."""
    monkeypatch.setenv("COLUMNS", "160")
    cli.run(["models", "list"])
    assert "`tidegate models fetch` gets the shipped ones" in capsys.readouterr().out
    cli.run(["models", "add", "mine", str(write_hf_folder(tmp_path / "mine"))])
    capsys.readouterr()

    cli.run(["models", "list"])

    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "KIND", "ARCHITECTURE", "PARAMETERS", "SIZE", "SERVED", "AS", "SOURCE"]
    assert row.split()[:4] == ["mine", "generate", "LlamaForCausalLM", "17"]


def test_verify_fails_when_a_file_changed(tmp_path, capsys):
    """Exit code 1, for scripts."""
    folder = write_hf_folder(tmp_path / "mine")
    cli.run(["models", "add", "mine", str(folder)])
    (folder / "config.json").write_text("{}")

    assert cli.run(["models", "verify"]) == 1
    assert "config.json has sha256" in capsys.readouterr().err


def test_a_model_error_is_one_line(tmp_path, capsys):
    """Not a traceback."""
    assert cli.run(["models", "remove", "nothing"]) == 1
    assert capsys.readouterr().err.startswith("tidegate: no model 'nothing'")


def test_an_unexpected_error_is_one_line_that_says_how_to_see_more(monkeypatch, capsys):
    """A defect of ours, not the user's."""

    def broken(_run_dir):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("tidegate.commands.status.need_stack", broken)
    assert cli.run(["status"]) == 1
    assert capsys.readouterr().err == (
        "tidegate: ZeroDivisionError: division by zero; this is a defect, TIDEGATE_DEBUG=1 shows where\n"
    )

    monkeypatch.setenv("TIDEGATE_DEBUG", "1")
    cli.run(["status"])
    assert "Traceback" in capsys.readouterr().err


def test_up_prefers_the_command_line_over_the_environment(monkeypatch):
    """And reads sizes in both."""
    seen = []

    def run_up(settings, *, as_json):
        seen.append((settings, as_json))
        return 0

    monkeypatch.setattr("tidegate.up.run_up", run_up)
    monkeypatch.setenv("TIDEGATE_POOL_BYTES", "1GiB")
    monkeypatch.setenv("TIDEGATE_GATEWAY_PORT", "9100")
    monkeypatch.setenv("TIDEGATE_NUM_CPUS", "2")

    assert cli.run(["up", "--gateway-port", "9200", "-m", "chat", "--spares", "chat=3", "--json"]) == 0

    settings, as_json = seen[0]
    assert (settings.pool_bytes, settings.gateway_port, settings.num_cpus) == (GIB, 9200, 2)
    assert (settings.models, settings.spares, as_json) == (("chat",), {"chat": 3}, True)


def test_doctor_judges_the_settings_that_up_would_use(monkeypatch, capsys):
    """Sizes in the environment included; exit code 1 when something fails."""
    seen = []

    def diagnose(settings, environ, stack):
        seen.append(settings)
        return [Check("memory", "fail", "too little", "buy more"), Check("ports", "ok", "free")]

    monkeypatch.setattr("tidegate.doctor.diagnose", diagnose)
    monkeypatch.setenv("TIDEGATE_POOL_BYTES", "1GiB")

    assert cli.run(["doctor"]) == 1
    assert seen[0].pool_bytes == GIB
    printed = capsys.readouterr().out
    assert "too little" in printed
    assert "-> buy more" in printed
    assert "1 to mend before" in printed

    cli.run(["doctor", "--json"])
    assert json.loads(capsys.readouterr().out)["healthy"] is False


def test_ups_exit_code_is_the_commands(monkeypatch, capsys):
    """Returned by run_up, or raised before it."""
    monkeypatch.setattr("tidegate.up.run_up", lambda settings, *, as_json: 1)
    assert cli.run(["up"]) == 1
    assert cli.run(["up", "--gateway-port", "0"]) == 1
    assert "gateway_port = 0, must be from 1 to 65535" in capsys.readouterr().err

    def taken(settings, *, as_json):
        raise PortTaken("gateway_port 9000 is taken")

    monkeypatch.setattr("tidegate.up.run_up", taken)
    assert cli.run(["up"]) == 1
    assert capsys.readouterr().err == "tidegate: gateway_port 9000 is taken\n"


RESULT = InstanceChange(
    model="chat",
    before=("chat-0",),
    after=("chat-0", "chat-1"),
    added=("chat-1",),
    removed=(),
    ready_ms=187.4,
    in_place=True,
)


@pytest.fixture
def scaling(monkeypatch, write_stack):
    """A stack that runs, and an actuator that does what it is told."""
    import os

    write_stack(os.getpid())
    outcome = {"result": RESULT}

    async def scale(stack, model, num_instances, *, on_event, drain_timeout_s):
        on_event(f"{model}: adding chat-1")
        outcome["asked"] = (stack.triton_grpc, model, num_instances, drain_timeout_s)
        if isinstance(outcome["result"], Exception):
            raise outcome["result"]
        return outcome["result"]

    monkeypatch.setattr("scaler.acting.by_hand.scale", scale)
    return outcome


def test_scale_prints_events_and_the_figures(scaling, capsys):
    """Events on standard error, the result on standard output."""
    assert cli.run(["scale", "chat", "2", "--drain-timeout-s", "5"]) == 0

    captured = capsys.readouterr()
    assert captured.out == "chat: 1 -> 2 instances (+chat-1) in 187 ms, in place\n"
    assert captured.err == "chat: adding chat-1\n"
    assert scaling["asked"] == ("127.0.0.1:2", "chat", 2, 5.0)


def test_scale_prints_json_for_scripts(scaling, capsys):
    """One object, nothing else on standard output."""
    cli.run(["scale", "chat", "2", "--json"])

    assert json.loads(capsys.readouterr().out)["ready_ms"] == 187.4


def test_a_failed_scale_is_told_in_the_actuators_words(scaling, capsys):
    """Exit code 1."""
    scaling["result"] = DrainTimeout("chat-1 has 3 requests in flight")

    assert cli.run(["scale", "chat", "1"]) == 1
    assert capsys.readouterr().err.endswith("tidegate: chat-1 has 3 requests in flight\n")


def test_more_instances_than_the_cores_can_feed_need_force(scaling, capsys):
    """1,000 on any test machine."""
    assert cli.run(["scale", "chat", "1000"]) == 1
    assert "without --force" in capsys.readouterr().err


def test_a_scale_to_what_is_there_says_so_and_a_reload_is_not_hidden():
    """Neither may read like a success of 0 ms."""
    import dataclasses

    same = dataclasses.replace(RESULT, before=("a",), after=("a",), added=())
    reload = dataclasses.replace(RESULT, in_place=False)

    assert scale_command._result_text(same) == "chat: has 1 instance already (a)"
    assert "NOT in place" in scale_command._result_text(reload)


class FakeBench:
    """A bench module of one figure."""

    @staticmethod
    def run(quick, progress):
        progress(f"quick: {quick}")
        return Report(
            "generate", 3, {"tokens_per_s_1": Figure(55.5, "tokens/s", 50.0, 60.0)}, {}, {"x": "no"}
        ).to_dict()


def test_bench_prints_one_object_as_the_last_line(monkeypatch, capsys):
    """Progress stays off standard output."""
    import importlib

    real = importlib.import_module
    monkeypatch.setattr(
        "tidegate.commands.bench.importlib.import_module",
        lambda name: FakeBench if name == "benchmarks.generate" else real(name),
    )
    assert cli.run(["bench", "generate", "--quick", "--json"]) == 0

    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["figures"]["tokens_per_s_1"]["max"] == 60.0
    assert captured.err == "quick: True\n"

    cli.run(["bench", "generate"])
    printed = capsys.readouterr().out
    assert ["tokens_per_s_1", "55.5", "50", "60", "tokens/s"] in [
        line.split() for line in printed.splitlines()
    ]
    assert "skipped x: no" in printed


def test_bench_list_names_all(capsys):
    """With a line each, and nothing else."""
    cli.run(["bench", "list"])
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert sorted(listed) == sorted(benchmarks.BENCHES)
