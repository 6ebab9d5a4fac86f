"""A small image classifier: images in, scores out. Its weights are random until a model.safetensors lies here."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.head(self.features(image).flatten(1)).softmax(-1)}


def build() -> nn.Module:
    return Classifier()


def example_inputs() -> dict[str, torch.Tensor]:
    return {"image": torch.zeros(1, 3, 64, 64)}
