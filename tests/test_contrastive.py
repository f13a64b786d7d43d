"""The objective against loops, who receives gradients, and that anyone's encoder can use it."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curl_rl.augment import random_crop
from curl_rl.contrastive import Contrastive, info_nce, momentum_copy, momentum_update
from curl_rl.rng import Purpose, words

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def slow_info_nce(logits: Tensor) -> float:
    """−log(exp(own) / Σ exp(all)) for each row, in Python's floats."""
    losses = []
    for i, row in enumerate(logits.double().tolist()):
        top = max(row)
        losses.append(math.log(sum(math.exp(x - top) for x in row)) + top - row[i])
    return sum(losses) / len(losses)


@pytest.mark.parametrize("scale", [0.1, 1.0, 1e4])
def test_info_nce(scale: float) -> None:
    logits = (scale * torch.randn(7, 7)).requires_grad_()
    loss = info_nce(logits)
    assert loss.item() == pytest.approx(slow_info_nce(logits), rel=1e-5, abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = (logits.detach().softmax(1) - torch.eye(7)) / 7
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_info_nce_of_batches_of_matrices() -> None:
    logits = torch.randn(3, 5, 5)
    torch.testing.assert_close(info_nce(logits), torch.stack([info_nce(matrix) for matrix in logits]))


def test_bilinear_similarity_is_query_w_key() -> None:
    contrastive, queries, keys = Contrastive(4), torch.randn(6, 4), torch.randn(6, 4)
    with torch.no_grad():
        logits, w = contrastive.logits(queries, keys), contrastive.W
    for i in range(6):
        for j in range(6):
            expected = sum(queries[i, a] * w[a, b] * keys[j, b] for a in range(4) for b in range(4))
            assert logits[i, j].item() == pytest.approx(expected.item(), abs=1e-5)


def test_cosine_similarity_over_temperature() -> None:
    contrastive, queries, keys = Contrastive(4, "cosine", temperature=0.1), torch.randn(6, 4), torch.randn(6, 4)
    expected = F.cosine_similarity(queries[:, None], keys[None], dim=-1) / 0.1
    torch.testing.assert_close(contrastive.logits(queries, keys), expected)
    assert not list(contrastive.parameters())


def test_w_starts_uniform_and_can_be_drawn_from_words() -> None:
    drawn = []
    for _ in range(2):
        contrastive = Contrastive(50)
        contrastive.initialise(words([3], 0, Purpose.INITIAL_WEIGHTS, 2500)[0])
        drawn.append(contrastive.W.detach())
    assert torch.equal(*drawn)
    for w in (drawn[0], Contrastive(50).W.detach()):
        assert w.min() >= 0
        assert w.max() < 1
        assert w.mean().item() == pytest.approx(0.5, abs=0.03)  # five standard errors
        assert w.var().item() == pytest.approx(1 / 12, rel=0.1)


def test_keys_receive_no_gradient() -> None:
    contrastive = Contrastive(4)
    queries, keys = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    contrastive(queries, keys).loss.backward()
    assert keys.grad is None
    assert queries.grad.abs().sum() > 0
    assert contrastive.W.grad.abs().sum() > 0


def test_narrow_latents_are_compared_in_float32() -> None:
    contrastive, queries, keys = Contrastive(4), torch.randn(6, 4).bfloat16(), torch.randn(6, 4).bfloat16()
    assert torch.equal(contrastive.logits(queries, keys), contrastive.logits(queries.float(), keys.float()))
    assert contrastive(queries, keys).loss.dtype == torch.float32


def test_accuracy_counts_queries_nearest_to_their_own_key() -> None:
    contrastive, latents = Contrastive(8, "cosine"), torch.randn(8, 8)
    assert contrastive(latents, latents).accuracy == 1
    swapped = latents[[1, 0, 2, 3, 4, 5, 6, 7]]
    assert contrastive(latents, swapped).accuracy == 0.75


def test_momentum_update() -> None:
    encoder = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    keys = momentum_copy(encoder)
    before = [p.clone() for p in keys.parameters()]
    for parameter in encoder.parameters():
        parameter.data.normal_()
    momentum_update(keys, encoder, tau=0.05)
    for key, query, old in zip(keys.parameters(), encoder.parameters(), before, strict=True):
        assert not key.requires_grad
        torch.testing.assert_close(key, 0.95 * old + 0.05 * query)  # m = 1 − τ


def test_any_encoder_learns_to_tell_images_apart() -> None:
    convolutions = (nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU())
    encoder = nn.Sequential(*convolutions, nn.Flatten(), nn.LazyLinear(16), nn.LayerNorm(16))
    images = torch.randint(0, 256, (32, 3, 4, 4), dtype=torch.uint8).repeat_interleave(6, 2).repeat_interleave(6, 3)

    def view() -> Tensor:
        return random_crop(images, 20, torch.randint(2**32, (32, 2))).float() / 255

    encoder(view())
    keys, contrastive = momentum_copy(encoder), Contrastive(16)
    optimiser = torch.optim.Adam([*encoder.parameters(), *contrastive.parameters()], 1e-3)
    accuracies = []
    for _ in range(200):
        loss, accuracy = contrastive(encoder(view()), keys(view()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        momentum_update(keys, encoder, 0.05)
        accuracies.append(accuracy.item())
    assert sum(accuracies[:5]) / 5 < 0.3
    assert sum(accuracies[-5:]) / 5 > 0.8


def test_example_of_a_policy_gradient_agent() -> None:
    path = Path(__file__).parents[1] / "examples" / "contrastive_policy_gradient.py"
    spec = importlib.util.spec_from_file_location("contrastive_policy_gradient", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    rewards, accuracies = torch.tensor(example.train(episodes=200)).T
    assert rewards[:20].mean() < 0.5
    assert rewards[-20:].mean() > 0.7
    assert accuracies[-20:].mean() > 1.5 * accuracies[:20].mean()
