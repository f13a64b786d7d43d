"""Random numbers as a pure function of (seed, step, purpose, element index).

There is no generator and so no generator's history: a number is a hash of what it is for. A trial therefore draws the
same numbers alone or among a hundred, on a CPU or a GPU; a CUDA graph needs no random state (the step is a tensor on
the device); a resumed run needs its step counter only; and an element never depends on how many are drawn after it.

    seed, purpose ──mix──▶ two base words ──mix with step──▶ two keys k0, k1
    word(index) = mix(mix(index ^ k0) + k1)

`mix` is a 32-bit finaliser (an invertible xor-shift-multiply hash). Two different draws share all their words only when
both keys collide, which takes about 2^32 draws; the words of one draw are all different (a part of a permutation). On
the CPU the words come from numpy's uint32 arithmetic, elsewhere from int64 tensors masked to 32 bits; the two are equal
to the bit. Not for cryptography.
"""

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
# Both multipliers are below 2^31, so that a 32-bit word times one of them fits an int64 without overflow.
_MULTIPLIER_1, _MULTIPLIER_2 = 0x21F0AAAD, 0x735A2D97
# The two key words start from different constants (the fractional parts of the square roots of 2 and 3).
_START = (0x6A09E667, 0xBB67AE85)


class Purpose(IntEnum):
    """What a random number is for.

    An id is part of every number drawn under it. Never renumber one, never reuse one: old runs could not be resumed or
    repeated. New purposes take new ids.
    """

    SAMPLE = 1  # which transitions an update reads
    CROP_QUERY = 2
    CROP_KEY = 3
    CROP_NEXT = 4
    EXPLORATION_NOISE = 5  # of the action taken in the environment
    ACTOR_NOISE = 6  # of the action in the actor's loss
    TARGET_NOISE = 7  # of the next action in the critic's target, or of the target network's noisy layers
    ONLINE_NOISE = 8  # of the online network's noisy layers
    NOISY_LAYERS = 9  # of any further noisy network
    RANDOM_ACTION = 10  # actions before learning starts, and those of epsilon-greedy exploration
    INITIAL_WEIGHTS = 11  # its steps are the numbers of the parameters
    SHIFT_QUERY = 12
    SHIFT_KEY = 13
    SHIFT_NEXT = 14
    EVALUATION = 15
    EPISODE_SEED = 16  # its steps are the numbers of the episodes
    EXPLORATION_CHOICE = 17  # whether epsilon-greedy explores
    RECONSTRUCTION_NOISE = 18  # dequantisation of a decoder's targets
    SPARE_1 = 61
    SPARE_2 = 62
    SPARE_3 = 63


class Draws:
    """All random words that one agent step needs, from one hash over the concatenated elements of every purpose.

    `plan` maps a name to (purpose, count). The words under a name are those of `words(seeds, step, purpose, count)`.
    What depends only on the seeds and the purposes is computed here; `draw` mixes in the step and the element index.
    """

    def __init__(
        self, plan: Mapping[str, tuple[Purpose, int]], seeds: Tensor | Sequence[int], device: torch.device | str = "cpu"
    ) -> None:
        purposes = [purpose for purpose, _ in plan.values()]
        if len(set(purposes)) < len(purposes):
            raise ValueError(f"two names share a purpose and would draw the same numbers: {dict(plan)}")
        counts = [count for _, count in plan.values()]
        self._ends = dict(zip(plan, np.cumsum(counts).tolist(), strict=True))
        self._counts = dict(zip(plan, counts, strict=True))
        base = _base_keys(seeds, purposes)  # [2, T, purposes]
        index = np.concatenate([np.arange(count, dtype=np.uint32) for count in [0, *counts]])
        owner = np.repeat(np.arange(len(counts)), counts)  # which purpose an element belongs to
        self._on_cpu = torch.device(device).type == "cpu"
        if self._on_cpu:
            self._numpy = base, index, owner
        else:
            wide = [torch.from_numpy(array.astype(np.int64)).to(device) for array in (base, index, owner)]
            self._tensors = wide[0], wide[1], wide[2]

    def draw(self, step: int | Tensor) -> dict[str, Tensor]:
        """Words of this step by name, int64 [T, count] in [0, 2^32). `step` is below 2^32."""
        if self._on_cpu:
            words = torch.from_numpy(_words_numpy(*self._numpy, int(step)).astype(np.int64))
        else:
            words = _words_torch(*self._tensors, step)
        return {name: words[:, end - self._counts[name] : end] for name, end in self._ends.items()}


def words(
    seeds: Tensor | Sequence[int],
    step: int | Tensor,
    purpose: Purpose,
    count: int,
    *,
    device: torch.device | str = "cpu",
) -> Tensor:
    """`count` random 32-bit words for each seed, int64 [T, count]."""
    return Draws({"words": (purpose, count)}, seeds, device).draw(step)["words"]


def uniform(words: Tensor) -> Tensor:
    """Uniform float32 in [0, 1): 24 bits, the most a float32 can hold without ever rounding up to 1."""
    return (words >> 8).to(torch.float32) * 2.0**-24


def integers(words: Tensor, n: int | Tensor) -> Tensor:
    """Uniform int64 in [0, n) by multiply and shift, for n below 2^31 (a number, or a tensor that broadcasts)."""
    return (words * n) >> 32


def normal(words: Tensor) -> Tensor:
    """Standard normal float32, one word each, by the inverse of the distribution function.

    The uniform is an odd multiple of 2^-23 in (-1, 1): exact in float32, symmetric, and never 0 or ±1, so that every
    number is finite (the largest is 5.2) and a word's complement gives the same number with the other sign.
    """
    centred = ((words >> 9) * 2 + (1 - 2**23)).to(torch.float32) * 2.0**-23
    return torch.erfinv(centred).mul_(math.sqrt(2))


def _base_keys(seeds: Tensor | Sequence[int], purposes: Sequence[int]) -> np.ndarray:
    """Two words for each seed (64 bits of it) and purpose, uint32 [2, T, purposes]."""
    seed = np.array([int(seed) & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)
    key = np.array(_START, dtype=np.uint32)[:, None]
    for half in (seed & np.uint64(_MASK), seed >> np.uint64(32)):
        key = _mix_numpy(key ^ half.astype(np.uint32))
    return _mix_numpy(key[:, :, None] ^ np.array(purposes, dtype=np.uint32))


def _words_numpy(base: np.ndarray, index: np.ndarray, owner: np.ndarray, step: int) -> np.ndarray:
    keys = _mix_numpy(base ^ np.uint32(step))
    first, second = keys.take(owner, axis=-1)
    first ^= index
    word = _mix_numpy(first)
    word += second
    return _mix_numpy(word)


def _words_torch(base: Tensor, index: Tensor, owner: Tensor, step: int | Tensor) -> Tensor:
    keys = _mix_torch(base ^ step)
    first, second = keys.index_select(-1, owner)
    return _mix_torch((_mix_torch(first ^ index) + second) & _MASK)


def _mix_numpy(x: np.ndarray) -> np.ndarray:
    """The finaliser on uint32, in place (its arithmetic wraps by itself)."""
    x ^= x >> 16
    x *= np.uint32(_MULTIPLIER_1)
    x ^= x >> 15
    x *= np.uint32(_MULTIPLIER_2)
    x ^= x >> 15
    return x


def _mix_torch(x: Tensor) -> Tensor:
    """The finaliser on int64 values in [0, 2^32)."""
    x = ((x ^ (x >> 16)) * _MULTIPLIER_1) & _MASK
    x = ((x ^ (x >> 15)) * _MULTIPLIER_2) & _MASK
    return x ^ (x >> 15)
