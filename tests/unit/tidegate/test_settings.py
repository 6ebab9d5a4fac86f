"""Settings: command line over environment over default, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.launch_errors import SettingsInvalid
from tidegate.settings import Settings


def test_the_command_line_wins_over_the_environment_and_that_over_the_default() -> None:
    """None on the command line means not given."""
    environ = {"TIDEGATE_TRITON_GRPC_PORT": "7001", "TIDEGATE_GATEWAY_PORT": "7002"}
    settings = Settings.resolve(environ, gateway_port=7003, triton_http_port=None)
    assert (settings.triton_grpc_port, settings.gateway_port, settings.triton_http_port) == (7001, 7003, 8000)


def test_every_kind_of_value_is_read_from_the_environment() -> None:
    """Names, counts, switches, paths, seconds."""
    settings = Settings.resolve(
        {
            "TIDEGATE_RUN_DIR": "/run/tg",
            "TIDEGATE_MODELS": "chat, my-model",
            "TIDEGATE_SPARES": "chat=3,my-model=0",
            "TIDEGATE_WITH_GATEWAY": "no",
            "TIDEGATE_STOP_TIMEOUT_S": "2.5",
        }
    )
    assert settings.run_dir == Path("/run/tg")
    assert settings.models == ("chat", "my-model")
    assert settings.spares == {"chat": 3, "my-model": 0}
    assert "gateway_port" not in settings.ports
    assert settings.stop_timeout_s == 2.5


def test_foreign_variables_with_the_prefix_are_ignored() -> None:
    """TIDEGATE_HOME is the models' folder, and others may share the prefix."""
    assert Settings.resolve({"TIDEGATE_HOME": "/x", "TIDEGATE_COLOUR": "blue"}) == Settings()


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"TIDEGATE_TRITON_HTTP_PORT": "70000"}, "triton_http_port = 70000, must be from 1 to 65535"),
        ({"TIDEGATE_TRITON_HTTP_PORT": "x1"}, "TIDEGATE_TRITON_HTTP_PORT = 'x1', must be a whole number"),
        ({"TIDEGATE_POOL_BYTES": "-1"}, "pool_bytes = -1, must be from 0 to"),
        ({"TIDEGATE_POOL_SHARE": "half"}, "TIDEGATE_POOL_SHARE = 'half', must be a number"),
        ({"TIDEGATE_POOL_SHARE": "1"}, r"pool_share = 1.0, must be from 0 to 0.95"),
        ({"TIDEGATE_WEIGHTS_BUDGET_BYTES": "-1"}, "weights_budget_bytes = -1, must be from 0 to"),
        ({"TIDEGATE_DEVICE": "cuda:0"}, "device = 'cuda:0', must be cpu, cuda or cuda:GPU-UUID"),
        ({"TIDEGATE_SPARES": "chat"}, "TIDEGATE_SPARES = 'chat', must read like chat=2,embed=1"),
        ({"TIDEGATE_SPARES": "chat=99"}, r"spares\[chat\] = 99, must be from 0 to 64"),
        ({"TIDEGATE_WITH_NODE": "maybe"}, "TIDEGATE_WITH_NODE = 'maybe', must be 1 or 0"),
        ({"TIDEGATE_MODELS": "../etc"}, "'../etc' is no model name"),
        ({"TIDEGATE_MODELS": "chat,chat"}, "chat named twice"),
        ({"TIDEGATE_MODELS": ","}, "must name at least one model"),
        ({"TIDEGATE_GATEWAY_PORT": "8000"}, "gateway_port = 8000 is triton_http_port too"),
        ({"TIDEGATE_TLS_CERT": "a.pem"}, "tls_cert = a.pem and tls_key = None: one needs the other"),
        ({"TIDEGATE_TLS_CLIENT_CA": "ca.pem"}, "tls_client_ca = ca.pem needs tls_cert and tls_key"),
        ({"TIDEGATE_STOP_TIMEOUT_S": "nan"}, "stop_timeout_s = nan, must be from 1 to"),
    ],
)
def test_a_bad_value_is_refused_with_its_key_and_what_is_allowed(environ: dict[str, str], text: str) -> None:
    """On construction, before anything starts."""
    with pytest.raises(SettingsInvalid, match=text):
        Settings.resolve(environ)
