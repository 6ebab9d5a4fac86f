"""`python -m python_backend.node --config RUN_DIR/node.json`: one node daemon until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from contracts import logs
from python_backend.node.config import NodeConfig, read_config
from python_backend.node.daemon import Daemon, DaemonOptions
from python_backend.node.errors import ConfigInvalid, NodeError

EXIT_CONFIG = 78
"""sysexits.h's EX_CONFIG: to start it again would change nothing."""


def main(arguments: list[str] | None = None, options: DaemonOptions | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m python_backend.node", description=__doc__)
    parser.add_argument(
        "--config", type=Path, required=True, help="JSON file, see python_backend/node/config.py"
    )
    parser.add_argument("--log-level", default="INFO")
    given = parser.parse_args(arguments)
    text_format = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logs.configure("tidegate-node", text_format, level=given.log_level.upper())
    try:
        asyncio.run(serve(read_config(given.config), options))
    except NodeError as exc:
        print(f"tidegate node: {exc}", file=sys.stderr)
        return EXIT_CONFIG if isinstance(exc, ConfigInvalid) else 1
    return 0


async def serve(config: NodeConfig, options: DaemonOptions | None = None) -> None:
    daemon = Daemon(config, options)
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, daemon.stop)
    await daemon.run()


if __name__ == "__main__":
    sys.exit(main())
