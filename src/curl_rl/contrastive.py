"""The paper's objective, for anyone's encoder and anyone's algorithm.

    keys = momentum_copy(encoder)                   # once
    contrastive = Contrastive(size=50)              # once; its W is trained along with the encoder
    loss, accuracy = contrastive(encoder(random_crop(x, 84, words)), keys(random_crop(x, 84, other_words)))
    momentum_update(keys, encoder, tau=0.05)        # after each step of the optimiser

It takes queries and keys, whoever made them: who encodes, crops and pays for a pass is the caller's wiring.
"""

import copy
from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .rng import uniform


class InfoNCE(NamedTuple):
    """What a batch of queries and keys gives."""

    loss: Tensor
    accuracy: Tensor
    """The share of queries that are most similar to their own key."""


class Contrastive(nn.Module):
    """Similarity of each query to each key, and the loss of telling which key is the query's own."""

    def __init__(
        self, size: int, similarity: Literal["bilinear", "cosine"] = "bilinear", temperature: float = 1.0
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.W = nn.Parameter(torch.rand(size, size)) if similarity == "bilinear" else None

    @torch.no_grad()
    def initialise(self, words: Tensor) -> None:
        """W ~ U[0, 1), from random words instead of PyTorch's generator."""
        if self.W is not None:
            self.W.copy_(uniform(words).view_as(self.W))

    def logits(self, queries: Tensor, keys: Tensor) -> Tensor:
        """[N, N]: row i has query i's similarities to all keys. In float32, whatever the encoders computed in."""
        queries, keys = widened(queries), widened(keys)
        if self.W is None:
            similarity = F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).mT
        else:
            similarity = queries @ self.W @ keys.mT  # sim(q, k) = qᵀ W k
        return similarity / self.temperature

    def forward(self, queries: Tensor, keys: Tensor) -> InfoNCE:
        """Row i of the keys is the positive of row i of the queries. Keys receive no gradient."""
        logits = self.logits(queries, keys.detach())
        own = torch.arange(logits.shape[-1], device=logits.device)
        return InfoNCE(info_nce(logits), (logits.argmax(-1) == own).float().mean(-1))


def info_nce(logits: Tensor) -> Tensor:
    """Equation (4) with its minus sign: −log softmax of each row of [..., N, N] at the diagonal, averaged over rows."""
    logits = logits - logits.amax(-1, keepdim=True).detach()  # the softmax stays, the exponentials cannot overflow
    return -logits.log_softmax(-1).diagonal(dim1=-2, dim2=-1).mean(-1)


def momentum_copy(encoder: nn.Module) -> nn.Module:
    """The key encoder at its start: a copy that no gradient reaches."""
    return copy.deepcopy(encoder).requires_grad_(False)


def momentum_update(keys: nn.Module, encoder: nn.Module, tau: float) -> None:
    """key ← (1 − τ) key + τ query for every parameter; the paper's momentum m is 1 − τ."""
    move_towards(keys.parameters(), encoder.parameters(), tau)


@torch.no_grad()
def move_towards(targets: Iterable[Tensor], online: Iterable[Tensor], tau: float) -> None:
    """target ← (1 − τ) target + τ online, in place and all at once."""
    torch._foreach_lerp_(list(targets), list(online), tau)


def widened(x: Tensor) -> Tensor:
    """At least float32."""
    return x if x.dtype == torch.float64 else x.float()
