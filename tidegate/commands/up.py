"""`tidegate up`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.commands.options import RunDirOption, parse_counts, parse_size, readable_environ

_PORTS = "Ports and addresses"
_RESOURCES = "Memory and processors"
_GATEWAY = "Keys, limits, routes, call log"
_SCALING = "Scaling"
_TRACING = "Tracing"


def _port(name: str, help_text: str) -> Any:
    return typer.Option(f"--{name}", help=help_text, rich_help_panel=_PORTS, metavar="PORT")


def up(
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="Serve this model; repeat for more. Default: chat and embed.",
        ),
    ] = None,
    run_dir: RunDirOption = None,
    repository: Annotated[
        Path | None,
        typer.Option("--repository", help="Another Triton model repository than the one that ships."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", help="Address to listen on (default 127.0.0.1).", rich_help_panel=_PORTS),
    ] = None,
    gateway_port: Annotated[int | None, _port("gateway-port", "OpenAI API (default 9000).")] = None,
    gateway_grpc_port: Annotated[
        int | None, _port("gateway-grpc-port", "KServe v2 gRPC behind keys and limits (default 9001).")
    ] = None,
    triton_http_port: Annotated[
        int | None, _port("triton-http-port", "Triton's HTTP (default 8000).")
    ] = None,
    triton_grpc_port: Annotated[
        int | None, _port("triton-grpc-port", "Triton's gRPC (default 8001).")
    ] = None,
    triton_metrics_port: Annotated[
        int | None, _port("triton-metrics-port", "Triton's Prometheus metrics (default 8002).")
    ] = None,
    scaler_port: Annotated[int | None, _port("scaler-port", "The scaler's gRPC (default 9002).")] = None,
    scaler_metrics_port: Annotated[
        int | None, _port("scaler-metrics-port", "The scaler's Prometheus metrics (default 9003; 0: none).")
    ] = None,
    node_metrics_port: Annotated[
        int | None,
        _port("node-metrics-port", "The memory node's Prometheus metrics (default 9004; 0: none)."),
    ] = None,
    gateway: Annotated[
        bool | None,
        typer.Option(
            "--gateway/--no-gateway",
            help="With or without the OpenAI API (default: with).",
            show_default=False,
        ),
    ] = None,
    scaler: Annotated[
        bool | None,
        typer.Option(
            "--scaler/--no-scaler",
            help="With or without the scaler (default: with).",
            show_default=False,
            rich_help_panel=_SCALING,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="How models are scaled (YAML). Without one the scaler observes and changes nothing.",
            rich_help_panel=_SCALING,
        ),
    ] = None,
    scaler_state_dir: Annotated[
        Path | None,
        typer.Option(
            "--scaler-state-dir",
            help="Where policy, pauses and reservations are kept (default: in the run directory).",
            rich_help_panel=_SCALING,
        ),
    ] = None,
    ledger_url: Annotated[
        str | None,
        typer.Option(
            "--ledger-url",
            metavar="URL",
            help="Keys, routes and the call log: sqlite:////path or postgresql://... (default: a file in the run "
            "directory).",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    routes: Annotated[
        Path | None,
        typer.Option(
            "--routes",
            metavar="FILE",
            help="Versions, percentages and special targets of the services (YAML); reloaded when it changes.",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    requires_keys: Annotated[
        bool | None,
        typer.Option(
            "--require-keys/--no-require-keys",
            help="Every call but health needs an API key, `tidegate keys create` (default: no keys).",
            show_default=False,
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            metavar="PEM",
            help="The gateway speaks TLS at both doors; read again when it is renewed.",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="PEM", help="Its private key.", rich_help_panel=_GATEWAY),
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-client-ca",
            metavar="PEM",
            help="Clients must show a certificate that this one signed (mutual TLS).",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option(
            "--redis-url",
            metavar="URL",
            help="Where several gateways share their limits (default: each counts for itself).",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    keeps_prompts: Annotated[
        bool | None,
        typer.Option(
            "--keep-prompts/--no-keep-prompts",
            help="The call log keeps what was asked (default: never any content).",
            show_default=False,
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    tracing: Annotated[
        bool | None,
        typer.Option(
            "--tracing/--no-tracing",
            help="One trace a sampled call, for `tidegate trace` and OTLP collectors (default: with).",
            show_default=False,
            rich_help_panel=_TRACING,
        ),
    ] = None,
    trace_ratio: Annotated[
        float | None,
        typer.Option(
            "--trace-ratio",
            metavar="0..1",
            help="Part of the calls that is traced whole (default 0.01); failed and slow ones beside that.",
            rich_help_panel=_TRACING,
        ),
    ] = None,
    trace_slow_s: Annotated[
        float | None,
        typer.Option(
            "--trace-slow-s",
            metavar="SECONDS",
            help="What counts as slow: the whole call, or a stream until its first text (default 5).",
            rich_help_panel=_TRACING,
        ),
    ] = None,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            "--otlp-endpoint",
            metavar="URL",
            help="Pass spans on to this OTLP/HTTP collector (default: $OTEL_EXPORTER_OTLP_ENDPOINT, else nobody).",
            rich_help_panel=_TRACING,
        ),
    ] = None,
    trace_port: Annotated[
        int | None,
        typer.Option(
            "--trace-port",
            metavar="PORT",
            help="OTLP/HTTP on loopback for Triton's spans, and your application's (default: any free one).",
            rich_help_panel=_TRACING,
        ),
    ] = None,
    pool_bytes: Annotated[
        str | None,
        typer.Option(
            "--pool-bytes",
            metavar="SIZE",
            help="KV memory shared by all instances: 2GiB, 512MiB, ... (default: a quarter of the free memory, "
            "at most 2GiB).",
            rich_help_panel=_RESOURCES,
        ),
    ] = None,
    pool_share: Annotated[
        float | None,
        typer.Option(
            "--pool-share",
            metavar="0..0.95",
            help="Instead of --pool-bytes: a part of the free memory.",
            rich_help_panel=_RESOURCES,
        ),
    ] = None,
    weights_budget_bytes: Annotated[
        str | None,
        typer.Option(
            "--weights-budget-bytes",
            metavar="SIZE",
            help="Most that resident weights take; the longest unused go first (default: the free memory less "
            "the pool).",
            rich_help_panel=_RESOURCES,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="cpu (default), cuda or cuda:GPU-UUID.",
            rich_help_panel=_RESOURCES,
        ),
    ] = None,
    num_cpus: Annotated[
        int | None,
        typer.Option(
            "--num-cpus", help="CPUs that all workers share (default: all).", rich_help_panel=_RESOURCES
        ),
    ] = None,
    spares: Annotated[
        list[str] | None,
        typer.Option(
            "--spares",
            metavar="MODEL=N",
            help="Warm workers standing by, so that scaling out does not wait (default chat=2 embed=1).",
            rich_help_panel=_RESOURCES,
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            "--log-format", metavar="FORMAT", help="text (default), json or logfmt, in RUN_DIR/logs."
        ),
    ] = None,
    start_timeout_s: Annotated[
        float | None, typer.Option("--start-timeout-s", help="For each process to be ready (default 300).")
    ] = None,
    stop_timeout_s: Annotated[
        float | None,
        typer.Option("--stop-timeout-s", help="For each process to drain and stop (default 30)."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="When ready, print the stack as one JSON object.")
    ] = False,
) -> None:
    """Serve models: node, Triton, gateway, scaler; until Ctrl-C.

    Prints the URLs when everything is ready. Ctrl-C or SIGTERM drains and stops; a second one kills.
    Every option can also be set as TIDEGATE_GATEWAY_PORT, TIDEGATE_POOL_BYTES, ...; the command line wins.
    """
    from tidegate.settings import Settings
    from tidegate.up import run_up

    settings = Settings.resolve(
        readable_environ(os.environ),
        run_dir=run_dir,
        host=host,
        gateway_port=gateway_port,
        gateway_grpc_port=gateway_grpc_port,
        triton_http_port=triton_http_port,
        triton_grpc_port=triton_grpc_port,
        triton_metrics_port=triton_metrics_port,
        with_gateway=gateway,
        scaler_port=scaler_port,
        scaler_metrics_port=scaler_metrics_port,
        node_metrics_port=node_metrics_port,
        with_scaler=scaler,
        policy=policy,
        scaler_state_dir=scaler_state_dir,
        ledger_url=ledger_url,
        routes=routes,
        requires_keys=requires_keys,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        redis_url=redis_url,
        keeps_prompts=keeps_prompts,
        with_tracing=tracing,
        trace_ratio=trace_ratio,
        trace_slow_s=trace_slow_s,
        otlp_endpoint=otlp_endpoint,
        trace_port=trace_port,
        log_format=log_format,
        repository=repository,
        pool_bytes=None if pool_bytes is None else parse_size("--pool-bytes", pool_bytes),
        pool_share=pool_share,
        weights_budget_bytes=None
        if weights_budget_bytes is None
        else parse_size("--weights-budget-bytes", weights_budget_bytes),
        device=device,
        num_cpus=num_cpus,
        models=tuple(models) if models else None,
        spares=parse_counts("--spares", spares) if spares else None,
        start_timeout_s=start_timeout_s,
        stop_timeout_s=stop_timeout_s,
    )
    raise typer.Exit(run_up(settings, as_json=as_json))
