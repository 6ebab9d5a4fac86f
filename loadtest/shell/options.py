"""What tidegate adds to Locust's command line, and how it takes effect."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from contracts.stack import default_run_dir, read_stack
from loadtest.generating.messages import Target
from loadtest.planning.plan import Plan, PlanError, load_plan
from loadtest.verdict import Verdict

log = logging.getLogger(__name__)

SHAPE_NAMES = ("hold", "stages", "spike", "wave", "day", "trace")


def add_arguments(parser: Any) -> None:
    """Listens to `events.init_command_line_parser`."""
    parser.add_argument(
        "--plan",
        metavar="FILE",
        env_var="TIDEGATE_PLAN",
        include_in_web_ui=False,
        help="Send a whole load-test plan by the clock, and exit with its verdict: 0 PASS, 1 FAIL, 2 INVALID.",
    )
    parser.add_argument(
        "--plan-out", metavar="FOLDER", include_in_web_ui=False, help="For what the plan's run leaves."
    )
    parser.add_argument(
        "--shape",
        choices=SHAPE_NAMES,
        include_in_web_ui=False,
        help="Users over the run time; -u is their peak, -t the time.",
    )
    parser.add_argument(
        "--trace",
        metavar="NAME",
        default="conv24",
        include_in_web_ui=False,
        help="Of --shape trace: a recorded trace or a CSV of seconds,count.",
    )
    parser.add_argument(
        "--grpc",
        metavar="HOST:PORT",
        default="",
        help="Where users over gRPC ask; default: the gateway of the stack that runs here at --host.",
    )
    parser.add_argument(
        "--key-env",
        metavar="NAME",
        default="TIDEGATE_API_KEY",
        include_in_web_ui=False,
        help="The environment variable with the gateway's API key.",
    )


def target_of(host: str, options: Any) -> Target:
    """Where Locust's own users ask. Without --grpc: that of our stack, when `host` is its gateway."""
    host = host.rstrip("/")
    grpc = options.grpc or _grpc_beside(host)
    return Target(http=host, grpc=grpc, key_env=options.key_env, is_grpc_tls=host.startswith("https:"))


def _grpc_beside(host: str) -> str:
    try:
        stack = read_stack(default_run_dir())
    except (OSError, ValueError):
        return ""
    is_it = stack is not None and urlsplit(host).netloc == stack.gateway_http
    return stack.gateway_grpc if stack is not None and is_it else ""


def _leave_out_grpc(environment: Any) -> None:
    """Users who have nowhere to ask would only fail."""
    if environment.host and not target_of(environment.host, environment.parsed_options).grpc:
        without = [each for each in environment.user_classes if getattr(each, "needs_grpc", False)]
        if without:
            environment.user_classes = [each for each in environment.user_classes if each not in without]
            names = ", ".join(each.__name__ for each in without)
            log.warning("%s left out: no stack of ours runs at that host; give --grpc HOST:PORT", names)


def _checked(path: Path) -> Plan:
    """Ends Locust with INVALID's exit code when the plan can't be used: nothing was sent, so nothing is known."""
    try:
        return load_plan(path)
    except PlanError as exc:
        for finding in exc.findings:
            log.error("%s: %s", path, finding)
    except OSError as exc:
        log.error("%s can't be read: %s", path, exc)
    sys.exit(Verdict.INVALID.exit_code)


def follow(environment: Any) -> None:
    """Listens to `events.init`, after Locust has read its options."""
    from loadtest.shell.plan_shape import InFlight, PlanShape
    from loadtest.shell.shapes import SHAPES

    options = environment.parsed_options
    environment.available_shape_classes = {kind.__name__: kind() for kind in SHAPES.values()}
    if options.plan:
        environment.user_classes = [InFlight]
        folder = Path(options.plan_out) if options.plan_out else None
        shape = PlanShape(Path(options.plan), _checked(Path(options.plan)).name, folder)
        environment.events.test_stop.add_listener(lambda **_: shape.stop())
    elif options.shape:
        _leave_out_grpc(environment)
        shape = environment.available_shape_classes[SHAPES[options.shape].__name__]
    else:
        _leave_out_grpc(environment)
        return
    shape.runner = environment.runner
    environment.shape_class = shape
