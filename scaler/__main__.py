"""`python -m scaler --config FILE`: decide and act until SIGTERM; then drains are taken back, and exit 0.

Exit code 78 (EX_CONFIG): what it is told makes no sense, and a restart would not change that.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from contracts import logs
from scaler.config import read_config
from scaler.errors import ConfigInvalid, PolicyInvalid, ScaleError, StateUnreadable
from scaler.process import ScalerProcess

READY_LINE = "tidegate-ready scaler"
EXIT_CONFIG = 78

log = logging.getLogger("scaler")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scaler", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="scaler.json")
    logs.configure("tidegate-scaler", "%(asctime)s %(message)s", level=logging.WARNING)
    log.setLevel(logging.INFO)  # not the root: httpx would tell of each of its requests
    try:
        asyncio.run(_serve(parser.parse_args().config))
    except (ConfigInvalid, PolicyInvalid, StateUnreadable) as exc:
        print(f"scaler: {exc}", file=sys.stderr)
        return EXIT_CONFIG
    except ScaleError as exc:
        print(f"scaler: {exc}", file=sys.stderr)
        return 1
    return 0


async def _serve(config_path: Path) -> None:
    """Until a signal; one that comes during the start, or while a standby waits, ends that."""
    serving, told = asyncio.create_task(_run(config_path)), asyncio.Event()

    def on_signal() -> None:
        if not told.is_set():  # a second cancel would cut the first one's clearing up short
            told.set()
            serving.cancel()

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, on_signal)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def _run(config_path: Path) -> None:
    async with ScalerProcess(read_config(config_path), os.environ, say=log.info) as scaler:
        print(READY_LINE, flush=True)
        await scaler.broken()


if __name__ == "__main__":
    sys.exit(main())
