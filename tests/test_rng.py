"""Random numbers: against a reference in plain Python integers, and by statistics that weak generators fail."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from curl_rl import rng
from curl_rl.rng import Draws, Purpose, integers, normal, uniform, words

MASK = 2**32 - 1


# ---------------------------------------------------------------- the definition, slowly


def slow_mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x21F0AAAD % 2**32
    x ^= x >> 15
    x = x * 0x735A2D97 % 2**32
    return x ^ (x >> 15)


def slow_word(seed: int, step: int, purpose: int, index: int) -> int:
    keys = []
    for key in (0x6A09E667, 0xBB67AE85):
        for part in (seed % 2**32, seed // 2**32 % 2**32, purpose, step):
            key = slow_mix(key ^ part)
        keys.append(key)
    return slow_mix((slow_mix(index ^ keys[0]) + keys[1]) % 2**32)


SEEDS = [0, 1, -1, 123_456_789_012, 2**63 - 1, 2**64 - 5]
STEPS = [0, 1, 99_999, 2**32 - 1]


@pytest.mark.parametrize("purpose", [Purpose.SAMPLE, Purpose.CROP_KEY, Purpose.SPARE_3])
@pytest.mark.parametrize("step", STEPS)
def test_words_follow_the_definition(step: int, purpose: Purpose) -> None:
    expected = [[slow_word(seed, step, purpose, index) for index in range(37)] for seed in SEEDS]
    assert words(SEEDS, step, purpose, 37).tolist() == expected


def test_these_words_never_change() -> None:
    """Whoever changes a constant or a purpose's id makes old runs impossible to resume or repeat."""
    assert words([0], 0, Purpose.SAMPLE, 3).tolist() == [[1208897549, 1242087141, 3146553688]]
    assert words([2**40 + 1], 100_000, Purpose.INITIAL_WEIGHTS, 3).tolist() == [[3166057536, 122235343, 2350415625]]
    assert [purpose.value for purpose in Purpose] == [*range(1, 19), 61, 62, 63]


@pytest.mark.parametrize("step", STEPS)
def test_tensor_arithmetic_equals_numpy_bit_for_bit(step: int) -> None:
    base = rng._base_keys(SEEDS, [3, 9, 40])
    index, owner = np.arange(3000, dtype=np.uint32) * 1_431_655, np.arange(3000) % 3
    expected = rng._words_numpy(base, index, owner, step)
    tensors = [torch.from_numpy(array.astype(np.int64)) for array in (base, index, owner)]
    for given in (step, torch.tensor(step)):
        found = rng._words_torch(tensors[0], tensors[1], tensors[2], given)
        assert found.dtype == torch.int64
        assert np.array_equal(found.numpy(), expected.astype(np.int64))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_draws_the_same_also_in_a_graph() -> None:
    plan = {"a": (Purpose.SAMPLE, 33), "b": (Purpose.TARGET_NOISE, 1001)}
    on_gpu, step = Draws(plan, SEEDS, "cuda"), torch.zeros((), dtype=torch.int64, device="cuda")
    on_gpu.draw(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = on_gpu.draw(step)
    for number in STEPS:
        step.fill_(number)
        graph.replay()
        expected = Draws(plan, SEEDS).draw(number)
        assert all(torch.equal(captured[name].cpu(), expected[name]) for name in plan)
        assert torch.allclose(normal(captured["b"]).cpu(), normal(expected["b"]), atol=1e-6)


def test_an_element_depends_on_its_own_index_only() -> None:
    long = words([5, 6], 7, Purpose.ONLINE_NOISE, 1000)
    for count in (1, 17, 999):
        assert torch.equal(words([5, 6], 7, Purpose.ONLINE_NOISE, count), long[:, :count])


def test_a_trial_draws_the_same_alone_or_among_many() -> None:
    seeds = torch.tensor([9, 3, 2**50])
    together = words(seeds, torch.tensor(12), Purpose.SAMPLE, 64)
    alone = [words([seed], 12, Purpose.SAMPLE, 64) for seed in seeds.tolist()]
    assert torch.equal(together, torch.cat(alone))


def test_draws_cuts_one_hash_into_the_purposes_words() -> None:
    plan = {"sample": (Purpose.SAMPLE, 32), "none": (Purpose.SPARE_1, 0), "noise": (Purpose.ONLINE_NOISE, 501)}
    draws = Draws(plan, [1, 2])
    for step in (4, torch.tensor(5)):
        drawn = draws.draw(step)
        assert list(drawn) == list(plan)
        for name, (purpose, count) in plan.items():
            assert torch.equal(drawn[name], words([1, 2], step, purpose, count))


def test_two_names_cannot_share_a_purpose() -> None:
    with pytest.raises(ValueError, match="share a purpose"):
        Draws({"a": (Purpose.SAMPLE, 1), "b": (Purpose.SAMPLE, 2)}, [0])


# ---------------------------------------------------------------- words to numbers

EDGES = torch.tensor([0, 1, 255, 256, 511, 512, 2**31 - 1, 2**31, MASK - 511, MASK - 1, MASK])


def test_uniforms_stay_below_one() -> None:
    numbers = uniform(EDGES)
    assert numbers.dtype == torch.float32
    assert numbers[0] == 0
    assert numbers[-1] == 1 - 2**-24
    assert torch.equal(numbers.double(), (EDGES >> 8).double() / 2**24)


@pytest.mark.parametrize("n", [1, 2, 17, 100_000, 2**31 - 1])
def test_integers_multiply_and_shift(n: int) -> None:
    assert integers(EDGES, n).tolist() == [word * n // 2**32 for word in EDGES.tolist()]
    assert integers(EDGES, torch.tensor(n)).tolist() == integers(EDGES, n).tolist()


def test_integers_reach_every_value_equally_often() -> None:
    spread = torch.arange(0, 2**32, 2**12)
    counts = torch.bincount(integers(spread, 17), minlength=17)
    assert len(counts) == 17
    assert counts.max() - counts.min() <= 1


def test_normals_are_finite_symmetric_quantiles() -> None:
    random = words([3], 1, Purpose.ACTOR_NOISE, 5000)
    both = torch.cat([random[0], EDGES])
    numbers = normal(both)
    assert numbers.dtype == torch.float32
    assert numbers.isfinite().all()
    assert torch.allclose(normal(MASK - both), -numbers, atol=1e-6, rtol=0)
    quantile = ((both >> 9).double() + 0.5) / 2**23
    assert np.allclose(numbers.numpy(), stats.norm.ppf(quantile.numpy()), atol=2e-6, rtol=2e-6)


# ---------------------------------------------------------------- statistics

Generator = Callable[[int, int, int, int], np.ndarray]  # seed, step, purpose, count -> uint32 [count]
SEED_GRID, STEP_GRID, PURPOSE_GRID, COUNT = range(1000, 1006), range(500, 506), range(1, 7), 4096


def ours(seed: int, step: int, purpose: int, count: int) -> np.ndarray:
    return words([seed], step, Purpose(purpose), count)[0].numpy().astype(np.uint32)


def chi_square(symbols: np.ndarray, kinds: int) -> float:
    return stats.chisquare(np.bincount(symbols.ravel(), minlength=kinds)).pvalue


def smallest(p_values: list[float]) -> float:
    """One p-value for the smallest of several (Bonferroni's)."""
    return min(1.0, min(p_values) * len(p_values))


def nibble_pairs(a: np.ndarray, b: np.ndarray) -> float:
    """Independence of two streams: the pairs of their highest and of their lowest four bits are equally frequent."""
    pairs = [(a >> shift & 15) * 16 + (b >> shift & 15) for shift in (28, 0)]
    return smallest([chi_square(pair.astype(np.int64), 256) for pair in pairs])


def bits_that_differ(a: np.ndarray, b: np.ndarray) -> float:
    """The number of differing bits of two streams is binomial (32, 1/2)."""
    differing = np.unpackbits((a ^ b).ravel().view(np.uint8)).reshape(-1, 32).sum(1)
    counts = np.bincount(differing.clip(8, 24) - 8, minlength=17)
    expected = stats.binom.pmf(np.arange(33), 32, 0.5)
    expected = np.concatenate([[expected[:9].sum()], expected[9:24], [expected[24:].sum()]])
    return stats.chisquare(counts, expected * counts.sum()).pvalue


def common_words(a: np.ndarray, b: np.ndarray) -> float:
    """Neighbouring streams share hardly a word, wherever in them: one that is another shifted shares nearly all."""
    pairs = list(zip(a.reshape(-1, COUNT), b.reshape(-1, COUNT), strict=True))
    shared = sum(len(np.intersect1d(x, y)) for x, y in pairs)
    return stats.poisson.sf(shared - 1, len(pairs) * COUNT**2 / 2**32)


def avalanche(generate: Generator) -> float:
    """Each bit of seed and step flips each bit of a word half the time."""
    p_values = []
    for flip in [(1 << bit, 0) for bit in range(0, 64, 3)] + [(0, 1 << bit) for bit in range(32)]:
        a, b = generate(77, 88, 1, COUNT), generate(77 ^ flip[0], 88 ^ flip[1], 1, COUNT)
        flipped = ((a ^ b)[:, None] >> np.arange(32, dtype=np.uint32) & 1).sum(0)
        deviations = (flipped - COUNT / 2) / np.sqrt(COUNT / 4)
        p_values.append(smallest(list(2 * stats.norm.sf(abs(deviations)))))
    return smallest(p_values)


def moments(numbers: np.ndarray) -> float:
    """Mean, variance, skewness and fourth moment of standard normals, each beside its standard error."""
    n = numbers.size
    errors = [
        numbers.mean() * np.sqrt(n),
        ((numbers**2).mean() - 1) * np.sqrt(n / 2),
        (numbers**3).mean() * np.sqrt(n / 15),
        ((numbers**4).mean() - 3) * np.sqrt(n / 96),
    ]
    return smallest([2 * stats.norm.sf(abs(error)) for error in errors])


def battery(generate: Generator) -> dict[str, float]:
    """p-values of all tests on a grid of neighbouring seeds, steps and purposes."""
    grid = np.array(
        [[[generate(s, t, p, COUNT) for p in PURPOSE_GRID] for t in STEP_GRID] for s in SEED_GRID], dtype=np.uint32
    )
    index_bits = [(grid[..., :-lag], grid[..., lag:]) for lag in (1, 2, 3, 4, 8, 16, 64, 256)]
    neighbours = {
        "seeds": (grid[:-1], grid[1:]),
        "steps": (grid[:, :-1], grid[:, 1:]),
        "purposes": (grid[:, :, :-1], grid[:, :, 1:]),
    }
    numbers = normal(torch.from_numpy(grid.astype(np.int64))).double().numpy().ravel()
    return {
        "high byte": chi_square((grid >> 24).astype(np.int64), 256),
        "low byte": chi_square((grid & 255).astype(np.int64), 256),
        "uniform": stats.kstest(grid.ravel() / 2**32, "uniform").pvalue,
        "normal": stats.kstest(numbers, "norm").pvalue,
        "moments": moments(numbers),
        "avalanche": avalanche(generate),
        "indices": smallest([test(a, b) for a, b in index_bits for test in (nibble_pairs, bits_that_differ)]),
        **{
            axis: smallest([test(a, b) for test in (nibble_pairs, bits_that_differ, common_words)])
            for axis, (a, b) in neighbours.items()
        },
    }


def test_words_pass_every_statistical_test() -> None:
    p_values = battery(ours)
    assert min(p_values.values()) > 0.001, p_values


def test_streams_of_seeds_and_steps_are_uniform_at_a_fixed_element() -> None:
    """What one element gives over the steps of a run, and over many seeds, is random as well."""
    steps = np.concatenate([ours(3, step, 1, 1) for step in range(20_000)])
    seeds = words(range(20_000), 3, Purpose.SAMPLE, 1)[:, 0].numpy().astype(np.uint32)
    for stream in (steps, seeds):
        p_values = [chi_square((stream >> shift & 255).astype(np.int64), 256) for shift in (24, 12, 0)]
        p_values += [nibble_pairs(stream[:-1], stream[1:]), bits_that_differ(stream[:-1], stream[1:])]
        assert smallest(p_values) > 0.001, p_values


def sum_of_the_coordinates(seed: int, step: int, purpose: int, count: int) -> np.ndarray:
    """A good hash of a bad key: neighbouring seeds and steps are each other's shifted sequence."""
    return rng._mix_numpy(np.arange(count, dtype=np.uint32) + np.uint32(seed + step + purpose & MASK))


def separate_hashes(seed: int, step: int, purpose: int, count: int) -> np.ndarray:
    """The xor of a hash per coordinate: the difference of two seeds' words is the same at every index."""
    key = slow_mix(seed & MASK) ^ slow_mix(step + 7) ^ slow_mix(purpose + 99)
    return rng._mix_numpy(np.arange(count, dtype=np.uint32)) ^ np.uint32(key)


def congruential(seed: int, step: int, purpose: int, count: int) -> np.ndarray:
    """A linear congruential generator: its lowest bits are a counter."""
    start = slow_word(seed, step, purpose, 0)
    power = np.cumprod(np.full(count, 1_664_525, np.uint32), dtype=np.uint32)
    return power * np.uint32(start) + np.cumsum(power, dtype=np.uint32) * np.uint32(1_013_904_223)


def lopsided(seed: int, step: int, purpose: int, count: int) -> np.ndarray:
    """Good words, but every fiftieth is halved."""
    good = ours(seed, step, purpose, count)
    return np.where(np.arange(count) % 50 == 0, good // 2, good)


@pytest.mark.parametrize(
    ("generate", "caught_by"),
    [
        (sum_of_the_coordinates, ["seeds", "steps", "purposes"]),
        (separate_hashes, ["seeds", "steps", "purposes", "avalanche"]),
        (congruential, ["indices"]),
        (lopsided, ["high byte", "uniform", "normal", "moments"]),
    ],
)
def test_weak_generators_are_caught(generate: Generator, caught_by: list[str]) -> None:
    p_values = battery(generate)
    for name in caught_by:
        assert p_values[name] < 1e-9, (name, p_values)
