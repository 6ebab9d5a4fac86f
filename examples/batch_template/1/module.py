"""Copy this folder to YOUR_REPOSITORY/NAME, write the module, name its tensors in config.pbtxt.

Rows of different lengths arrive padded; `lengths` [rows] says how much of each is not padding (leave the parameter
out if you do not need it). Put a model.safetensors with the state dict's names here and the weights are shared by
all instances of the node, read-only; or put an exported program here as model.pt2 instead of this file.
"""

import torch
from torch import nn


class MeanOfRow(nn.Module):
    def forward(self, values: torch.Tensor, lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        """values [rows, longest], lengths [rows] -> mean [rows, 1] and centred [rows, longest]."""
        is_real = torch.arange(values.shape[1]) < lengths[:, None]
        mean = (values * is_real).sum(1, keepdim=True) / lengths[:, None]
        return {"mean": mean, "centred": values - mean}


def build() -> nn.Module:
    return MeanOfRow()


def example_inputs() -> dict[str, torch.Tensor]:
    """Run once when the model is bound, to find mistakes, and by each worker before it serves."""
    return {"values": torch.ones(2, 8), "lengths": torch.tensor([8, 5])}
