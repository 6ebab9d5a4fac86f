"""A scaler of a few lines as a process: `python -m tests.e2e.scaler_process TRITON RUN_DIR MODEL WANTED`.

Scales the model once, says how that went in one line, then looks at it five times a second until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from scaler.acting.challenge import Claim
from scaler.acting.ownership import owner_id
from scaler.acting.plain_target import PlainTarget
from scaler.acting.target import Limits
from scaler.errors import OwnedByOther
from scaler.triton_client import TritonClient

ANSWER_S = 2.0


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def main(address: str, run_dir: str, model: str, wanted: str) -> None:
    triton = TritonClient(address)
    claim = Claim(triton, owner_id(Path(run_dir)), log, ANSWER_S)
    target = PlainTarget(triton, Path(run_dir), limits=lambda _: Limits(), say=log, claim=claim)
    try:
        result = await target.scale(model, int(wanted), "test")
        print(f"scaled to {result.after}", flush=True)
    except OwnedByOther as exc:
        print(f"refused: {exc}", flush=True)
    while True:
        await target.counts(model)
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    Path(sys.argv[2]).mkdir(exist_ok=True)
    asyncio.run(main(*sys.argv[1:]))
