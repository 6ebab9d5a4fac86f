"""A device that is not there: a batch of n rows takes FIXED_S + PER_ROW_S * n, asleep, so that eight instances run
side by side on two cores. Each row says when its batch began and ended on the device, and where.
"""

import os
import time

import torch
from torch import nn

FIXED_S = 0.020
PER_ROW_S = 0.040


class EmulatedDevice(nn.Module):
    def forward(self, number: torch.Tensor) -> dict[str, torch.Tensor]:
        """number [rows, 1] -> answer = 2 * number + 1, and for every row its batch's times, worker and size."""
        started_s = time.monotonic()
        time.sleep(FIXED_S + PER_ROW_S * len(number))
        return {
            "answer": 2 * number + 1,
            "started_s": torch.full_like(number, started_s),
            "ended_s": torch.full_like(number, time.monotonic()),
            "worker_pid": torch.full(number.shape, os.getpid()),
            "rows": torch.full(number.shape, len(number)),
        }


def build() -> nn.Module:
    return EmulatedDevice()


def example_inputs() -> dict[str, torch.Tensor]:
    return {"number": torch.zeros(2, 1, dtype=torch.float64)}
