"""Trials in lockstep equal the same trials alone, and one can be taken out and go on."""

import dataclasses
from collections.abc import Sequence

import pytest
import safetensors.torch
import torch
from torch import Tensor

from curl_rl.config import ContrastiveConfig, SACConfig
from curl_rl.errors import UserError
from curl_rl.population import Population
from curl_rl.replay import Batch
from curl_rl.rng import Draws
from curl_rl.sac import SAC

torch.set_num_threads(1)

SIZE, ACTIONS, SEEDS = 20, 2, (3, 1, 7)
TINY = SACConfig(batch_size=4, crop_size=17, filters=8, feature_size=5, hidden_size=12, first_random_agent_steps=0)
ORDERS = ("own", "joint", "authors")


def population(
    seeds: Sequence[int] = SEEDS, kind: torch.dtype = torch.float64, step: str = "own", **fields: object
) -> Population:
    config = dataclasses.replace(TINY, contrastive=ContrastiveConfig(step=step), **fields)  # type: ignore[arg-type]
    return Population([SAC(config, (6, SIZE, SIZE), ACTIONS, seed, kind) for seed in seeds])


def batch_for(seeds: Sequence[int], number: int) -> Batch:
    """Each trial's transitions depend on its seed and on nothing else."""
    rows = []
    for seed in seeds:
        g = torch.Generator().manual_seed(1000 * seed + number)
        obs, following = torch.randint(0, 256, (2, 4, 6, SIZE, SIZE), dtype=torch.uint8, generator=g)
        reward, discount = torch.rand(2, 4, generator=g)
        action = 2 * torch.rand(4, ACTIONS, generator=g) - 1
        rows.append((obs, action, reward, following, 0.99 * discount, torch.ones(4), torch.zeros(4)))
    return Batch(*(torch.stack(field) for field in zip(*rows, strict=True)))


def train(trials: Population, seeds: Sequence[int], steps: range) -> dict[str, Tensor]:
    draws = Draws(trials.learning_plan(), seeds)
    metrics: dict[str, Tensor] = {}
    for step in steps:
        metrics |= trials.update(batch_for(seeds, step), draws.draw(step), step)
    return metrics


@pytest.mark.parametrize("step", ORDERS)
def test_three_together_equal_three_alone_in_float64(step: str) -> None:
    together = population(step=step)
    metrics = train(together, SEEDS, range(200))
    state = together.state_dict()
    for row, seed in enumerate(SEEDS):
        alone = population([seed], step=step)
        own_metrics = train(alone, [seed], range(200))
        assert own_metrics.keys() == metrics.keys()
        for name, value in own_metrics.items():
            torch.testing.assert_close(metrics[name][row : row + 1], value, rtol=1e-7, atol=1e-9)
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(state[name][row : row + 1], value, rtol=1e-7, atol=1e-9)
    first = state["agent.trunk.layers.0.weight"]
    assert (first[0] - first[1]).abs().max() > 0.1  # the trials are three,
    for name in ("critic", "contrastive"):
        assert (metrics[f"losses/{name}_gradient_norm"] > 1e-3).all()  # and each trunk is alive


@pytest.mark.parametrize("step", ORDERS)
def test_three_together_equal_three_alone_in_float32(step: str) -> None:
    """A rounding can flip a ReLU, so weights are compared as wholes: far closer to each other than to their start."""
    together = population(kind=torch.float32, step=step)
    start = {name: weight.detach().clone() for name, weight in together.weights.items()}
    train(together, SEEDS, range(20))
    for row, seed in enumerate(SEEDS):
        alone = population([seed], torch.float32, step)
        train(alone, [seed], range(20))
        gap = sum((together.weights[n][row] - w).square().sum().item() for n, w in alone.weights.items())
        way = sum((start[n][row] - w).square().sum().item() for n, w in alone.weights.items())
        assert gap**0.5 < 0.01 * way**0.5


@pytest.mark.parametrize("step", ORDERS)
def test_a_trial_taken_out_goes_on_alone(step: str) -> None:
    together = population(step=step)
    train(together, SEEDS, range(5))
    alone = population([SEEDS[1]], step=step)
    alone.load_state_dict({name: value[1:2] for name, value in together.state_dict().items()})
    train(together, SEEDS, range(5, 12))
    train(alone, [SEEDS[1]], range(5, 12))
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(together.state_dict()[name][1:2], value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("seeds", [SEEDS, (3,)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_restored_population_goes_on_to_the_bit(seeds: tuple[int, ...], kind: torch.dtype) -> None:
    first = population(seeds, kind)
    train(first, seeds, range(3))
    saved = {name: value.clone() for name, value in first.state_dict().items()}
    second = population([seed + 50 for seed in seeds], kind)
    train(second, seeds, range(1))
    second.load_state_dict(saved)
    for trials in (first, second):
        train(trials, seeds, range(3, 7))
    ends = first.state_dict(), second.state_dict()
    for name in saved:
        assert torch.equal(ends[0][name], ends[1][name]), name
        if name != "agent.log_alpha" and "bias" not in name:
            assert not torch.equal(saved[name], ends[0][name]), name


def test_state_names_weights_targets_and_moments() -> None:
    trials = population()
    train(trials, SEEDS, range(3))
    state = trials.state_dict()
    for name in (
        "agent.trunk.layers.0.weight",
        "agent.target_critics.heads.1.last.bias",
        "agent.contrastive.W",
        "agent.log_alpha",
        "adam.contrastive.trunk.layers.3.weight.exp_avg_sq",
        "adam.critic.trunk.layers.3.weight.exp_avg",
        "adam.alpha.log_alpha.step",
    ):
        assert state[name].shape[0] == 3
    for trials_or_one in (trials, population(SEEDS[:1])):
        saved = safetensors.torch.load(safetensors.torch.save(trials_or_one.state_dict()))
        trials_or_one.load_state_dict(saved)
    assert state["adam.critic.projection.norm.bias.step"].tolist() == [3, 3, 3]
    assert state["adam.actor.actor.1.last.bias.step"].tolist() == [2, 2, 2]  # agent steps 0 and 2


def test_a_state_that_does_not_fit_is_refused() -> None:
    trials = population()
    for wrong in (population(feature_size=6), population(step="joint"), population(SEEDS[:2])):
        with pytest.raises(UserError, match="does not fit"):
            trials.load_state_dict(wrong.state_dict())


def test_acting_together_equals_acting_alone() -> None:
    together = population()
    stacks = torch.randint(0, 256, (3, 5, 6, SIZE, SIZE), dtype=torch.uint8)
    drawn = Draws(together.acting_plan(5), SEEDS).draw(9)
    for explore in (True, False):
        actions = together.act(stacks, drawn, 9, explore)
        assert actions.shape == (3, 5, ACTIONS)
        for row, seed in enumerate(SEEDS):
            own = Draws(population([seed]).acting_plan(5), [seed]).draw(9)
            alone = population([seed]).act(stacks[row : row + 1], own, 9, explore)
            torch.testing.assert_close(actions[row : row + 1], alone)


def test_a_trial_comes_out_as_a_plain_agent() -> None:
    for seeds in (SEEDS, SEEDS[:1]):
        trials = population(seeds)
        train(trials, seeds, range(2))
        stacks = torch.randint(0, 256, (len(seeds), 2, 6, SIZE, SIZE), dtype=torch.uint8)
        actions = trials.act(stacks, {}, 2, explore=False)
        for row in range(len(seeds)):
            agent = trials.trial(row)
            torch.testing.assert_close(agent.act(stacks[row]), actions[row])
            agent.log_alpha.data.zero_()  # a copy: the population keeps its own
        assert not trials.weights["log_alpha"].eq(0).any()
