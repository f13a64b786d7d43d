"""Trunk, projection and heads: plain modules of one trial.

Weights are float32 (float64 in tests). `arithmetic` is the type in which the large products are computed: bfloat16
where that is fast. Whatever is narrow and cheap stays in the weights' own type: the first and last layers of the heads,
so that neither observed states nor values are rounded to eight bits, and the normalisation.

Each layer starts from random words of its own (`initialise`), hence from a pure function of seed and layer.
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .convolution import convolution_relu
from .errors import UserError
from .rng import Purpose, normal, words


class Linear(nn.Module):
    """y = Wx + b, computed in `arithmetic`, or in the weights' own type."""

    def __init__(self, inputs: int, outputs: int, arithmetic: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.arithmetic = arithmetic

    def forward(self, x: Tensor) -> Tensor:
        kind = self.arithmetic or self.weight.dtype
        return F.linear(x.to(kind), self.weight.to(kind), self.bias.to(kind))

    def initialise(self, words: Tensor) -> None:
        """Orthogonal with gain 1."""
        self.weight.copy_(orthogonal(normal(words[: self.weight.numel()]).view_as(self.weight)))


class Convolution(nn.Module):
    """3 × 3, no padding, followed by ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs, 3, 3))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.stride = stride

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        weight = self.weight if scale == 1 else self.weight * scale
        return convolution_relu(x, weight, self.bias, self.stride)

    def initialise(self, words: Tensor) -> None:
        """Delta-orthogonal with centre gain √2: zero but for an orthogonal matrix at the middle of the kernel."""
        middle = self.weight[:, :, 1, 1]
        middle.copy_(math.sqrt(2) * orthogonal(normal(words[: middle.numel()]).view_as(middle)))


class Trunk(nn.Module):
    """Images [N, C, H, W] → features [N, F]: four convolutions, with strides 2, 1, 1, 1."""

    def __init__(self, image: tuple[int, int, int], filters: int, arithmetic: torch.dtype) -> None:
        super().__init__()
        channels, *size = image
        sides = [(side - 3) // 2 + 1 - 6 for side in size]
        if min(sides) < 1:
            raise UserError(
                f"Images of {size[0]} × {size[1]} are too small for four convolutions; take 15 × 15 or more."
            )
        widths = (channels, filters, filters, filters, filters)
        self.layers = nn.ModuleList(
            Convolution(inputs, outputs, stride=2 if first else 1)
            for first, (inputs, outputs) in zip((True, False, False, False), pairwise(widths), strict=True)
        )
        self.outputs = filters * sides[0] * sides[1]
        areas = [(sides[0] + 2 * n) * (sides[1] + 2 * n) for n in (3, 2, 1, 0)]  # of the layers' outputs
        self.flop = sum(2 * area * a * b * 9 for area, (a, b) in zip(areas, pairwise(widths), strict=True))
        """Floating-point operations of one image's forward pass: 84.6 million for the paper's."""
        self.arithmetic = arithmetic

    def read(self, images: Tensor) -> Tensor:
        """uint8 images as the convolutions want them; what several trunks look at is read once."""
        return channels_last(images).to(self.arithmetic)

    def forward(self, images: Tensor) -> Tensor:
        """The features in the order (row, column, filter), which is how channels-last activations lie in memory."""
        x = images if images.is_floating_point() else self.read(images)
        for number, layer in enumerate(self.layers):
            # Pixels are exact in bfloat16 as integers, so / 255 goes into the first layer's weights.
            x = layer(x, scale=1 / 255 if number == 0 else 1.0)
        return x.permute(0, 2, 3, 1).flatten(1)


class Projection(nn.Module):
    """Features → latent: Linear and LayerNorm; where asked, the hidden layer and the tanh that the paper's text has."""

    def __init__(self, inputs: int, outputs: int, hidden: int, tanh: bool, arithmetic: torch.dtype) -> None:
        super().__init__()
        self.hidden = Linear(inputs, hidden, arithmetic) if hidden else None
        self.linear = Linear(hidden or inputs, outputs, arithmetic)
        self.norm = nn.LayerNorm(outputs)
        self.tanh = tanh

    def forward(self, features: Tensor) -> Tensor:
        x = features if self.hidden is None else F.relu(self.hidden(features))
        x = self.norm(self.linear(x).to(self.norm.weight.dtype))
        return x.tanh() if self.tanh else x


class Perceptron(nn.Module):
    """Two hidden layers with ReLU."""

    def __init__(self, inputs: int, hidden: int, outputs: int, arithmetic: torch.dtype) -> None:
        super().__init__()
        self.first = Linear(inputs, hidden)
        self.second = Linear(hidden, hidden, arithmetic)
        self.last = Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.second(F.relu(self.first(x)))))


class TwinCritics(nn.Module):
    """Two action values of latent and action, [2, N]."""

    def __init__(self, latent: int, actions: int, hidden: int, arithmetic: torch.dtype) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Perceptron(latent + actions, hidden, 1, arithmetic) for _ in range(2))

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([latent, action], dim=-1)
        return torch.stack([head(x).squeeze(-1) for head in self.heads])


def channels_last(images: Tensor) -> Tensor:
    """The same [N, C, H, W], lying in memory as [N, H, W, C]."""
    count, _, height, width = images.shape
    if images.device.type == "cpu" and height == width:
        # C·H² channels of one pixel, shuffled to C channels of H × H, are this very transposition, and PyTorch does it
        # three times as fast as a copy between the two layouts.
        return F.pixel_shuffle(images.reshape(count, 1, 1, -1).permute(0, 3, 1, 2), height)
    return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def orthogonal(normals: Tensor) -> Tensor:
    """The orthogonal factor of a matrix of normals: its rows, or its columns if they are fewer, are orthonormal."""
    rows, columns = normals.shape
    q, r = torch.linalg.qr(normals if rows >= columns else normals.T)
    q = q * r.diagonal().sign()  # else Q would carry the sign convention of the decomposition
    return q if rows >= columns else q.T


@torch.no_grad()
def initialise(network: nn.Module, seed: int) -> None:
    """Give every layer that can be initialised the words of its own number."""
    layers = [layer for layer in network.modules() if hasattr(layer, "initialise")]
    for number, layer in enumerate(layers):
        size = sum(parameter.numel() for parameter in layer.parameters())
        layer.initialise(words([seed], number, Purpose.INITIAL_WEIGHTS, size)[0])  # type: ignore[operator]
