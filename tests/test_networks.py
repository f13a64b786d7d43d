"""Layers against plain PyTorch; the fused convolution against the plain one; how weights start."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curl_rl import convolution
from curl_rl.convolution import convolution_relu
from curl_rl.errors import UserError
from curl_rl.networks import (
    Convolution,
    Linear,
    Perceptron,
    Projection,
    Trunk,
    TwinCritics,
    channels_last,
    initialise,
    orthogonal,
)

torch.set_num_threads(1)
needs_fused = pytest.mark.skipif(not convolution.HAS_FUSED_OPERATOR, reason="this PyTorch has no fused convolution")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def images(n: int, size: int = 24) -> Tensor:
    return torch.randint(0, 256, (n, 9, size, size), dtype=torch.uint8)


def trunk(arithmetic: torch.dtype = torch.float32, filters: int = 8, size: int = 24) -> Trunk:
    made = Trunk((9, size, size), filters, arithmetic)
    for parameter in made.parameters():
        parameter.data.normal_(std=0.1)
    return made.double() if arithmetic == torch.float64 else made


# -- the convolution ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.02)])
@needs_fused
def test_fused_convolution_has_the_plain_ones_values_and_gradients(
    kind: torch.dtype, tolerance: float, stride: int
) -> None:
    x = torch.randn(5, 8, 13, 13).to(kind, memory_format=torch.channels_last)
    weight, bias, pull = (
        torch.randn(16, 8, 3, 3) / 8,
        torch.randn(16),
        torch.randn(5, 16, 11 // stride + stride - 1, 11 // stride + stride - 1),
    )

    def run(f, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        inputs = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]
        y = f(*inputs, stride)
        return (y, *torch.autograd.grad((y.float() * pull).sum(), inputs))

    fused = run(convolution._Fused.apply, x, weight, bias)
    plain = run(convolution._plain, x.float(), weight.to(kind).float(), bias.to(kind).float())
    for ours, reference in zip(fused, plain, strict=True):
        assert (ours.float() - reference).norm() < tolerance * reference.norm()
    assert fused[0].dtype == fused[1].dtype == kind
    assert fused[2].dtype == fused[3].dtype == torch.float32  # gradients of the weights are not narrowed


@needs_fused
def test_fused_convolution_under_transforms() -> None:
    """The bare operator has gradient zero under torch.func.grad; ours must not."""
    x, weight, bias = torch.randn(3, 2, 4, 9, 9), torch.randn(3, 6, 4, 3, 3), torch.randn(3, 6)

    def loss(f):
        return lambda w, b, x: f(x, w, b, 2).square().sum()

    for i in range(3):
        ours = torch.func.grad(loss(convolution._Fused.apply), (0, 1))(weight[i], bias[i], x[i])
        plain = torch.func.grad(loss(convolution._plain), (0, 1))(weight[i], bias[i], x[i])
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
        assert ours[0].abs().sum() > 0
    together = torch.vmap(torch.func.grad(loss(convolution._Fused.apply), (0, 1)))(weight, bias, x)
    alone = [torch.func.grad(loss(convolution._plain), (0, 1))(weight[i], bias[i], x[i]) for i in range(3)]
    torch.testing.assert_close(together, tuple(map(torch.stack, zip(*alone, strict=True))), rtol=1e-4, atol=1e-4)

    leaf = weight.clone().requires_grad_()
    (outside,) = torch.autograd.grad(torch.vmap(loss(convolution._Fused.apply))(leaf, bias, x).sum(), leaf)
    torch.testing.assert_close(outside, together[0], rtol=1e-4, atol=1e-4)


def test_without_the_fused_operator_the_plain_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3), torch.randn(6)
    with_whatever_is_there = convolution_relu(x, weight, bias, 1)
    monkeypatch.setattr(convolution, "HAS_FUSED_OPERATOR", False)
    monkeypatch.setattr(convolution._Fused, "apply", None)
    torch.testing.assert_close(convolution_relu(x, weight, bias, 1), with_whatever_is_there, rtol=1e-4, atol=1e-4)


# -- trunk and heads ----------------------------------------------------------------------------------------------


def slow_trunk(module: Trunk, pixels: Tensor) -> Tensor:
    x = pixels.to(next(module.parameters()).dtype) / 255
    for layer, stride in zip(module.layers, (2, 1, 1, 1), strict=True):
        x = F.relu(F.conv2d(x, layer.weight, layer.bias, stride))
    return torch.stack([image.permute(1, 2, 0).reshape(-1) for image in x])  # row, column, filter


def test_trunk() -> None:
    module, pixels = trunk(torch.float64), images(3)
    assert module.outputs == 8 * 5 * 5
    torch.testing.assert_close(module(pixels), slow_trunk(module, pixels), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(module(module.read(pixels)), module(pixels))


@pytest.mark.parametrize("shape", [(5, 9, 24, 24), (5, 9, 20, 24), (1, 1, 4, 4)])
def test_channels_last_moves_no_pixel(shape: tuple[int, ...]) -> None:
    pixels = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    for one in (pixels[0], pixels[0].mT.contiguous().mT):
        laid_out = channels_last(one)
        assert torch.equal(laid_out, one)
        assert laid_out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(torch.vmap(channels_last)(pixels), pixels)


def test_the_papers_trunk_has_39200_features() -> None:
    with torch.device("meta"):
        assert Trunk((9, 84, 84), 32, torch.float32).outputs == 39200


def test_trunk_in_bf16_is_close_to_float32() -> None:
    wide, narrow, pixels = trunk(), trunk(torch.bfloat16), images(16)
    narrow.load_state_dict(wide.state_dict())
    a, b = wide(pixels), narrow(pixels)
    assert b.dtype == torch.bfloat16
    assert (a - b).norm() < 0.01 * a.norm()
    gradients = [torch.autograd.grad(y.float().sum(), list(m.parameters())) for y, m in ((a, wide), (b, narrow))]
    for reference, ours in zip(*gradients, strict=True):
        assert (reference - ours).norm() < 0.1 * reference.norm()


def test_too_small_images_are_refused() -> None:
    assert Trunk((9, 15, 15), 4, torch.float32).outputs == 4
    with pytest.raises(UserError, match="14 × 15"):
        Trunk((9, 14, 15), 4, torch.float32)


@pytest.mark.parametrize(("hidden", "tanh"), [(0, False), (12, True)])
def test_projection(hidden: int, tanh: bool) -> None:
    module = Projection(20, 5, hidden, tanh, torch.float32)
    for parameter in module.parameters():
        parameter.data.normal_()
    features = torch.randn(7, 20)
    x = F.relu(features @ module.hidden.weight.T + module.hidden.bias) if hidden else features
    x = x @ module.linear.weight.T + module.linear.bias
    x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    x = x * module.norm.weight + module.norm.bias
    torch.testing.assert_close(module(features), x.tanh() if tanh else x, rtol=1e-4, atol=1e-5)


def test_twin_critics_are_two_perceptrons_of_latent_and_action() -> None:
    critics = TwinCritics(5, 2, 16, torch.float32)
    initialise(critics, seed=1)
    latent, action = torch.randn(4, 5), torch.randn(4, 2)
    for head, values in zip(critics.heads, critics(latent, action), strict=True):
        x = torch.cat([latent, action], 1)
        x = F.relu(x @ head.first.weight.T)
        x = F.relu(x @ head.second.weight.T)
        torch.testing.assert_close(values, (x @ head.last.weight.T)[:, 0])
    assert not torch.equal(*critics(latent, action))


def test_bf16_heads_neither_read_nor_answer_in_eight_bits() -> None:
    wide, narrow = (Perceptron(3, 256, 1, kind) for kind in (torch.float32, torch.bfloat16))
    initialise(wide, seed=0)
    narrow.load_state_dict(wide.state_dict())
    x = torch.randn(64, 3)
    a, b = wide(x), narrow(x)
    assert not torch.equal(a, b)  # bf16 was used
    assert (a - b).norm() < 0.01 * a.norm()
    assert not torch.equal(b, b.bfloat16().float())
    nudged = narrow.first(x * (1 + 2**-12))  # a change that bf16 cannot hold
    assert not torch.equal(nudged, narrow.first(x))


# -- initial weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (40, 8)])
def test_orthogonal(shape: tuple[int, int]) -> None:
    q = orthogonal(torch.randn(shape))
    assert q.shape == shape
    gram = q @ q.T if shape[0] <= shape[1] else q.T @ q
    torch.testing.assert_close(gram, torch.eye(min(shape)), rtol=0, atol=1e-5)


def test_orthogonal_is_uniform_over_signs() -> None:
    corners = torch.stack([orthogonal(torch.randn(3, 3))[0, 0] for _ in range(400)])
    assert 150 < (corners > 0).sum() < 250  # five standard deviations
    assert corners.var().item() == pytest.approx(1 / 3, rel=0.25)  # an entry of a uniform 3 × 3 rotation


def test_layers_start_orthogonal_and_convolutions_delta_orthogonal() -> None:
    network = nn.ModuleDict({"trunk": Trunk((9, 24, 24), 32, torch.float32), "linear": Linear(100, 50)})
    initialise(network, seed=7)
    linear = network["linear"]
    torch.testing.assert_close(linear.weight @ linear.weight.T, torch.eye(50), rtol=0, atol=1e-5)
    assert not linear.bias.any()
    for layer in network["trunk"].layers:
        assert isinstance(layer, Convolution)
        middle = layer.weight[:, :, 1, 1].detach() / math.sqrt(2)
        inputs = middle.shape[1]
        torch.testing.assert_close(middle.T @ middle, torch.eye(inputs), rtol=0, atol=1e-5)
        around = layer.weight.detach().clone()
        around[:, :, 1, 1] = 0
        assert not around.any()
        assert not layer.bias.any()


def test_initial_weights_are_a_function_of_seed_and_layer() -> None:
    def drawn(seed: int, hidden: int = 8) -> Perceptron:
        module = Perceptron(8, hidden, 8, torch.float32)
        initialise(module, seed)
        return module

    first = drawn(1)
    torch.manual_seed(123)
    assert torch.equal(first.second.weight, drawn(1).second.weight)
    assert not torch.equal(first.second.weight, drawn(2).second.weight)
    assert not torch.equal(first.first.weight, first.second.weight)
