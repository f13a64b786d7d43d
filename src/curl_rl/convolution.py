"""A convolution with its ReLU, fused where oneDNN offers that, with the same values and gradients everywhere.

Fused, an activation is written once instead of twice and never read in between, which is a third of a trunk's time on
a CPU. The operator is private to PyTorch, so it is used only where it is found, and tested against the plain one.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

HAS_FUSED_OPERATOR = hasattr(torch.ops.mkldnn, "_convolution_pointwise") and torch.backends.mkldnn.is_available()


def convolution_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """relu(x ∗ weight + bias) without padding, in the type of x; weight and bias may be wider."""
    fused = HAS_FUSED_OPERATOR and x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16)
    return _Fused.apply(x, weight, bias, stride) if fused else _plain(x, weight, bias, stride)


def _plain(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    return F.relu(F.conv2d(x, weight.to(x.dtype), bias.to(x.dtype), stride))


class _Fused(torch.autograd.Function):
    """Written with `setup_context` and `vmap`, so that torch.func's transforms see its gradient.

    The bare operator has none: differentiated by torch.func.grad it would give zeros without a word. Weights are cast
    inside, so that the gradients of several chunks of a batch are summed in the weights' own, wider type.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        w, b = weight.to(x.dtype), bias.to(x.dtype)
        return torch.ops.mkldnn._convolution_pointwise(x, w, b, [0, 0], [stride, stride], [1, 1], 1, "relu", [], "")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
        x, weight, bias, ctx.stride = inputs
        ctx.save_for_backward(x, weight, output)
        ctx.bias_dtype = bias.dtype

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight, output = ctx.saved_tensors
        gradient = torch.ops.aten.threshold_backward(gradient, output, 0)  # zero where the ReLU was
        dx, dw, db = torch.ops.aten.convolution_backward(
            gradient, x, weight.to(x.dtype), [weight.shape[-4]], [ctx.stride] * 2, [0, 0], [1, 1], False, [0, 0], 1,
            [ctx.needs_input_grad[0], True, True],
        )  # fmt: skip
        return dx, dw.to(weight.dtype), db.to(ctx.bias_dtype), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor, stride: int
    ) -> tuple[Tensor, int]:
        return torch.vmap(partial(_plain, stride=stride), in_dims[:3])(x, weight, bias), 0
