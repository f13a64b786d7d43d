"""The update against a plain re-writing, its parts against slow references, and who trains what."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from curl_rl import convolution
from curl_rl.config import ContrastiveConfig, SACConfig
from curl_rl.errors import UserError
from curl_rl.phases import Phase
from curl_rl.population import Population
from curl_rl.replay import Batch
from curl_rl.rng import Draws, integers, normal, uniform
from curl_rl.sac import SAC, squashed_log_probability

torch.set_num_threads(1)

SIZE, CROP, ACTIONS = 22, 18, 2
TINY = SACConfig(
    batch_size=6,
    crop_size=CROP,
    filters=3,
    feature_size=5,
    hidden_size=12,
    first_random_agent_steps=4,
    initial_alpha=0.3,
)


def tiny(step: str = "own", weight: float = 1.0, **fields: Any) -> SACConfig:
    contrastive = ContrastiveConfig(weight=weight, step=step)  # type: ignore[arg-type]
    return dataclasses.replace(TINY, contrastive=contrastive, **fields)


def agent(config: SACConfig = TINY, seed: int = 0, kind: torch.dtype = torch.float64) -> SAC:
    return SAC(config, (6, SIZE, SIZE), ACTIONS, seed, kind)


def batch_of(trials: int, count: int, number: int) -> Batch:
    """Transitions whose every number depends on `number`."""
    g = torch.Generator().manual_seed(number)
    pixels = torch.randint(0, 256, (2, trials, count, 6, SIZE, SIZE), dtype=torch.uint8, generator=g)
    numbers = torch.rand(4, trials, count, generator=g)
    actions = 2 * torch.rand(trials, count, ACTIONS, generator=g) - 1
    discount = 0.99 * (numbers[1] < 0.8)
    return Batch(
        pixels[0], actions, numbers[0], pixels[1], discount, torch.ones(trials, count), torch.zeros(trials, count)
    )


def train(population: Population, seeds: list[int], steps: int, count: int = 6) -> dict[str, Tensor]:
    draws = Draws(population.learning_plan(), seeds)
    metrics: dict[str, Tensor] = {}
    for step in range(steps):
        metrics |= population.update(batch_of(len(seeds), count, step), draws.draw(step), step)
    return metrics


# -- the whole update, written again, plainly -----------------------------------------------------------------------


class Plain:
    """Ordinary tensors, torch.optim.Adam and F.conv2d; the same order of events, told by name."""

    def __init__(self, config: SACConfig, start: SAC):
        self.config, self.order = config, config.contrastive.step
        self.p = {n: t.detach().clone().requires_grad_() for n, t in start.named_parameters()}
        rate, trunk_and_projection = config.learning_rate, ("trunk", "projection")
        self.critic = self.adam((*trunk_and_projection, "critics"), rate)
        self.actor = self.adam(("actor",), rate)
        self.alpha = torch.optim.Adam([self.p["log_alpha"]], config.alpha_learning_rate, (0.5, 0.999))
        self.contrast = self.adam((*trunk_and_projection, "contrastive"), rate)
        self.encoder = self.adam(trunk_and_projection, rate)
        self.joint = self.adam((*trunk_and_projection, "critics", "contrastive"), rate)

    def adam(self, names: tuple[str, ...], rate: float) -> torch.optim.Adam:
        return torch.optim.Adam([t for n, t in self.p.items() if n.split(".")[0] in names], rate)

    def trunk(self, who: str, pixels: Tensor) -> Tensor:
        x = pixels.double() / 255
        for i, stride in enumerate((2, 1, 1, 1)):
            x = F.relu(F.conv2d(x, self.p[f"{who}.layers.{i}.weight"], self.p[f"{who}.layers.{i}.bias"], stride))
        return x.permute(0, 2, 3, 1).flatten(1)

    def project(self, who: str, h: Tensor) -> Tensor:
        x = F.linear(h, self.p[f"{who}.linear.weight"], self.p[f"{who}.linear.bias"])
        return F.layer_norm(x, (x.shape[-1],), self.p[f"{who}.norm.weight"], self.p[f"{who}.norm.bias"])

    def mlp(self, who: str, x: Tensor) -> Tensor:
        for layer in ("first", "second"):
            x = F.relu(F.linear(x, self.p[f"{who}.{layer}.weight"], self.p[f"{who}.{layer}.bias"]))
        return F.linear(x, self.p[f"{who}.last.weight"], self.p[f"{who}.last.bias"])

    def q(self, who: str, z: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([z, a], 1)
        return self.mlp(f"{who}.heads.0", x)[:, 0], self.mlp(f"{who}.heads.1", x)[:, 0]

    def pi(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        out = self.mlp("actor.1", self.project("actor.0", h))
        mean, log_std = out[:, :ACTIONS], -10 + 6 * (torch.tanh(out[:, ACTIONS:]) + 1)
        u = mean + log_std.exp() * noise
        log_p = torch.distributions.Normal(mean, log_std.exp()).log_prob(u) - torch.log(1 - torch.tanh(u) ** 2)
        return torch.tanh(u), log_p.sum(1)

    def crop(self, images: Tensor, words: Tensor) -> Tensor:
        reach = SIZE - CROP + (1 if self.config.crop_offsets == "all" else 0)
        corners = integers(words, reach).view(-1, 2).tolist()
        return torch.stack([im[:, y : y + CROP, x : x + CROP] for im, (y, x) in zip(images, corners, strict=True)])

    def critic_loss(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            a, log_p = self.pi(self.trunk("trunk", self.next), self.target_noise)
            z_next = self.project("target_projection", self.trunk("target_trunk", self.next))
            v = torch.minimum(*self.q("target_critics", z_next, a)) - self.p["log_alpha"].exp() * log_p
            y = self.batch.reward[0] + self.batch.discount[0] * v
        q1, q2 = self.q("critics", z, self.batch.action[0].double())
        return F.mse_loss(q1, y) + F.mse_loss(q2, y)

    def contrastive_loss(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            keys = self.project("target_projection", self.trunk("target_trunk", self.key))
        logits = z @ self.p["contrastive.W"] @ keys.T
        logits = logits - logits.max(1, keepdim=True).values
        return self.config.contrastive.weight * F.cross_entropy(logits, torch.arange(len(z)))

    def actor_and_alpha(self, h: Tensor) -> None:
        h = h.detach()
        z = self.project("projection", h).detach()
        a, log_p = self.pi(h, self.actor_noise)
        alpha = self.p["log_alpha"].exp()
        actor_loss = (alpha.detach() * log_p - torch.minimum(*self.q("critics", z, a))).mean()
        alpha_loss = (alpha * (-log_p - (-ACTIONS)).detach()).mean()
        self.step(actor_loss, self.actor)
        self.step(alpha_loss, self.alpha)

    def step(self, loss: Tensor, *optimisers: torch.optim.Adam) -> None:
        for tensor in self.p.values():
            tensor.grad = None
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()

    @torch.no_grad()
    def averages(self) -> None:
        for name, tau in (("trunk", 0.05), ("projection", 0.05), ("critics", 0.01)):
            for n in self.p:
                if n.startswith(f"{name}."):
                    self.p[f"target_{n}"].copy_((1 - tau) * self.p[f"target_{n}"] + tau * self.p[n])

    def update(self, batch: Batch, words: dict[str, Tensor], agent_step: int) -> None:
        self.batch = batch
        self.query, self.key = self.crop(batch.obs[0], words["query"][0]), self.crop(batch.obs[0], words["key"][0])
        self.next = self.crop(batch.next_obs[0], words["next"][0])
        noises = (normal(words[n][0]).view(-1, ACTIONS).double() for n in ("target_noise", "actor_noise"))
        self.target_noise, self.actor_noise = noises
        even = agent_step % 2 == 0
        h = self.trunk("trunk", self.query)
        z = self.project("projection", h)
        if self.order == "authors":
            self.step(self.critic_loss(z), self.critic)
            if even:
                self.actor_and_alpha(self.trunk("trunk", self.query))
                self.averages()
            z = self.project("projection", self.trunk("trunk", self.query))
            self.step(self.contrastive_loss(z), self.encoder, self.contrast)
            return
        if self.order == "joint":
            self.step(self.critic_loss(z) + self.contrastive_loss(z), self.joint)
        else:
            weights = [t for n, t in self.p.items() if not n.startswith("target")]
            losses = (self.critic_loss(z), self.contrastive_loss(z))
            gradients = [torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True) for loss in losses]
            for optimiser, gradient in zip((self.critic, self.contrast), gradients, strict=True):
                for weight, g in zip(weights, gradient, strict=True):
                    weight.grad = g
                optimiser.step()
        if even:
            self.actor_and_alpha(h)
            self.averages()


@pytest.mark.parametrize("offsets", ["all", "authors"])
@pytest.mark.parametrize("step", ["own", "joint", "authors"])
def test_update_equals_its_plain_rewriting(step: str, offsets: str) -> None:
    config = tiny(step, weight=0.7, crop_offsets=offsets)
    population, plain = Population([agent(config)]), Plain(config, agent(config))
    draws = Draws(population.learning_plan(), [0])
    for number in range(5):
        batch, words = batch_of(1, 6, number), draws.draw(number)
        population.update(batch, words, number)
        plain.update(batch, words, number)
    for name, weight in population.weights.items():
        torch.testing.assert_close(weight, plain.p[name], rtol=1e-8, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


def test_the_three_orders_differ() -> None:
    trained = [Population([agent(tiny(step))]) for step in ("own", "joint", "authors")]
    for population in trained:
        train(population, [0], 3)
    firsts = [population.weights["trunk.layers.0.weight"] for population in trained]
    assert all((a - b).abs().max() > 1e-5 for a, b in zip(firsts, firsts[1:] + firsts[:1], strict=True))


def test_several_updates_in_one_agent_step_use_words_and_transitions_of_their_own() -> None:
    config = tiny(updates_per_agent_step=3)
    population, plain = Population([agent(config)]), Plain(config, agent(config))
    words = Draws(population.learning_plan(), [0]).draw(8)
    assert words["sample"].shape == (1, 18)
    batch = batch_of(1, 18, 0)
    population.update(batch, words, 8)
    for i in range(3):  # an even agent step: all three train the actor and move the averages
        own_words = {name: w.chunk(3, dim=1)[i] for name, w in words.items()}
        plain.update(Batch(*(x.chunk(3, dim=1)[i] for x in batch)), own_words, 8)
    for name, weight in population.weights.items():
        torch.testing.assert_close(weight, plain.p[name], rtol=1e-8, atol=1e-10)
    single = Draws(Population([agent()]).learning_plan(), [0]).draw(8)
    assert all(torch.equal(words[name][:, : w.shape[1]], w) for name, w in single.items())


# -- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.8, 0.3), (-2.0, 0.7), (0.3, math.exp(-4))])
def test_log_probability_is_a_density_over_actions(mean: float, std: float) -> None:
    """Numerically integrated over a = tanh(u): it sums to 1, and its mean is that of tanh of the normal."""
    noise = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    raw = mean + std * noise
    density = squashed_log_probability(raw[:, None], torch.tensor([[math.log(std)]]), noise[:, None]).exp()
    action = raw.tanh()
    assert torch.trapezoid(density, action).item() == pytest.approx(1, abs=1e-5)
    normal_density = (-0.5 * noise**2).exp() / math.sqrt(2 * math.pi)
    expected = torch.trapezoid(normal_density * action, noise).item()
    assert torch.trapezoid(density * action, action).item() == pytest.approx(expected, abs=1e-5)


def test_log_probability_is_exact_where_tanh_rounds_to_one() -> None:
    raw = torch.tensor([[25.0], [-25.0]], requires_grad=True)
    log_p = squashed_log_probability(raw, torch.zeros(2, 1), torch.zeros(2, 1))
    expected = -0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 25)  # 1 − tanh²(x) → 4 exp(−2|x|)
    torch.testing.assert_close(log_p, torch.full((2,), expected))
    torch.testing.assert_close(torch.autograd.grad(log_p.sum(), raw)[0], torch.tensor([[2.0], [-2.0]]))


def test_log_probabilities_of_several_dimensions_add_up() -> None:
    raw, log_std, noise = torch.randn(3, 5, 4)
    alone = [squashed_log_probability(*(x[:, i : i + 1] for x in (raw, log_std, noise))) for i in range(4)]
    torch.testing.assert_close(squashed_log_probability(raw, log_std, noise), sum(alone))


def test_policy_starts_with_a_small_deviation_and_stays_in_bounds() -> None:
    made = agent()
    last = made.actor[1].last
    with torch.no_grad():
        last.weight.zero_()
    features = torch.randn(3, made.trunk.outputs, dtype=torch.float64)
    mean, log_std = made.policy(features)
    assert torch.equal(mean, torch.zeros_like(mean))
    torch.testing.assert_close(log_std, torch.full_like(log_std, -4.0))
    for bias, bound in ((100.0, 2.0), (-100.0, -10.0)):
        last.bias.data.fill_(bias)
        torch.testing.assert_close(made.policy(features)[1], torch.full_like(log_std, bound))


def test_target_is_the_reward_alone_after_a_termination() -> None:
    made, batch = agent(), batch_of(1, 6, 0)
    views = made.views(batch._replace(discount=torch.zeros(1, 6)), Draws(made.learning_draws(), [0]).draw(0))
    one = views._replace(**{name: tensor[0] for name, tensor in views._asdict().items()})
    torch.testing.assert_close(made.target(one), batch.reward[0].double())


@pytest.mark.parametrize(("raised", "deviation"), [(True, -10.0), (False, -1.0)])
def test_temperature_rises_where_the_policy_is_less_random_than_wanted(raised: bool, deviation: float) -> None:
    made = agent()
    made.actor[1].last.weight.data.zero_()
    made.actor[1].last.bias.data[ACTIONS:] = math.atanh(min((deviation + 10) / 6 - 1, 0.99)) if not raised else -100.0
    population = Population([made])
    before = made.log_alpha.item()
    metrics = train(population, [0], 1)
    assert (made.log_alpha.item() > before) is raised
    assert (metrics["losses/entropy"].item() < -ACTIONS) is raised  # the target entropy is −|A|


def test_averages_move_on_every_second_agent_step_only() -> None:
    population = Population([agent()])
    draws = Draws(population.learning_plan(), [0])
    for step in range(4):
        before = {name: weight.detach().clone() for name, weight in population.weights.items()}
        population.update(batch_of(1, 6, step), draws.draw(step), step)
        for name, weight in population.weights.items():
            if name.startswith("target_"):
                tau = 0.0 if step % 2 else 0.01 if "critics" in name else 0.05
                online = population.weights[name.removeprefix("target_")]
                torch.testing.assert_close(weight, (1 - tau) * before[name] + tau * online, rtol=1e-12, atol=1e-14)
            elif name.startswith(("actor", "log_alpha")) and step % 2:
                assert torch.equal(weight, before[name])


def test_views_crop_query_key_and_next_each_by_itself() -> None:
    config = dataclasses.replace(TINY, batch_size=64)
    made = agent(config)
    batch = batch_of(1, 64, 0)
    same = batch._replace(next_obs=batch.obs)
    views = made.views(same, Draws(made.learning_draws(), [0]).draw(0))
    assert views.query.shape == (1, 64, 6, CROP, CROP)
    assert views.query.dtype == torch.uint8
    for a, b in ((views.query, views.key), (views.query, views.next), (views.key, views.next)):
        equal = (a == b).flatten(2).all(2).sum().item()
        assert equal < 20  # 1 in 25 by chance


# -- who trains what --------------------------------------------------------------------------------------------------


def gradient_routes(population: Population, phase: Phase, loss: str) -> set[str]:
    """Which parts of the agent a loss reaches at all, trained by it or not."""
    drawn = Draws(population.learning_plan(), [0]).draw(0)
    views = population.agent.views(batch_of(1, 6, 0), drawn)
    single = views._replace(**{name: tensor[0] for name, tensor in views._asdict().items()})
    losses, _, _ = population.agent(phase.method, phase.losses, single, {})
    weights = population.agent.requires_grad_(True)
    names, tensors = zip(*weights.named_parameters(), strict=True)
    gradients = torch.autograd.grad(losses[loss], tensors, allow_unused=True)
    return {n.split(".")[0] for n, g in zip(names, gradients, strict=True) if g is not None and g.any()}


@pytest.mark.parametrize("step", ["own", "joint", "authors"])
def test_no_gradient_into_keys_targets_or_from_the_actor_into_the_trunk(step: str) -> None:
    expected = {
        "critic": {"trunk", "projection", "critics"},
        "contrastive": {"trunk", "projection", "contrastive"},
        "actor": {"actor", "critics"},  # through the critics, whose weights its Adam does not hold (below)
        "alpha": {"log_alpha"},
    }
    seen = {}
    population = Population([agent(tiny(step))])
    population.agent.requires_grad_(True)  # even then nothing flows into the targets
    for phase in population.agent.phases:
        seen |= {loss: gradient_routes(population, phase, loss) for loss in phase.losses}
    assert seen == expected


@pytest.mark.parametrize("step", ["own", "joint", "authors"])
def test_each_phase_changes_its_own_weights_only(step: str) -> None:
    encoder = {"trunk", "projection"}
    expected = {
        "representation": encoder | {"critics", "contrastive"},
        "critic": encoder | {"critics"},
        "contrastive": encoder | {"contrastive"},
        "actor": {"actor", "log_alpha"},
        "averages": {"target_trunk", "target_projection", "target_critics"},
        "measurement": set(),
    }
    made = agent(tiny(step))
    all_phases = made.phases
    train(population := Population([made]), [0], 1)  # so that targets and online weights differ
    for phase in all_phases:
        made.phases = (phase,)
        before = {name: weight.detach().clone() for name, weight in population.weights.items()}
        population.update(batch_of(1, 6, 1), Draws(population.learning_plan(), [0]).draw(0), 0)
        changed = {n.split(".")[0] for n, w in population.weights.items() if not torch.equal(w, before[n])}
        assert changed == expected[phase.name], phase.name


class CountConvolutions(TorchDispatchMode):
    """Forward and backward passes of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if "conv" in name:
            assert len(args[0]) == 6  # the batch, never two of them in one pass
            self.calls["backward" if "backward" in name else "forward"] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("config", "odd", "even"),
    [
        (tiny("own"), 8, 8),
        (tiny("joint"), 6, 6),
        (tiny("authors"), 9, 10),
        (tiny(weight=0.0), 5, 5),
    ],
    ids=["own", "joint", "authors", "rad"],
)
def test_trunk_units_of_an_update(config: SACConfig, odd: int, even: int) -> None:
    """A forward pass of four convolutions is one unit, a backward pass two."""
    population = Population([agent(config, kind=torch.float32)])
    draws = Draws(population.learning_plan(), [0])
    for step, expected in ((1, odd), (2, even)):
        with CountConvolutions() as count:
            population.update(batch_of(1, 6, 0), draws.draw(step), step)
        assert count.calls["forward"] / 4 + 2 * count.calls["backward"] / 4 == expected


# -- metrics, precision, acting, states -----------------------------------------------------------------------------


def test_metrics() -> None:
    metrics = train(Population([agent()]), [0], 1)
    assert set(metrics) == {
        f"losses/{name}"
        for name in (
            *("qf_loss", "qf_values", "contrastive_loss", "contrastive_accuracy", "similarity_norm"),
            *("critic_gradient_norm", "contrastive_gradient_norm", "gradient_ratio"),
            *("actor_loss", "alpha_loss", "alpha", "entropy"),
        )
    }
    assert all(value.shape == (1,) and not value.requires_grad for value in metrics.values())
    ratio = metrics["losses/critic_gradient_norm"] / metrics["losses/contrastive_gradient_norm"]
    assert torch.equal(metrics["losses/gradient_ratio"], ratio)


def test_gradient_norms_are_those_of_the_trunk() -> None:
    made = agent()
    views = made.views(batch_of(1, 6, 0), Draws(made.learning_draws(), [0]).draw(0))
    single = views._replace(**{name: tensor[0] for name, tensor in views._asdict().items()})
    losses, _, _ = made.representation(("critic", "contrastive"), single, {})
    expected = {}
    for name, loss in losses.items():
        gradients = torch.autograd.grad(loss, list(made.trunk.parameters()), retain_graph=True)
        expected[name] = math.sqrt(sum(g.square().sum().item() for g in gradients))
    metrics = train(Population([made]), [0], 1)
    for name, norm in expected.items():
        assert metrics[f"losses/{name}_gradient_norm"].item() == pytest.approx(norm)


def test_gradient_ratio_is_finite_where_nothing_pulls() -> None:
    made = agent()
    for parameter in made.trunk.parameters():
        parameter.data.fill_(-1.0)  # every ReLU is shut
    metrics = train(Population([made]), [0], 1)
    assert metrics["losses/contrastive_gradient_norm"].item() == 0
    assert metrics["losses/gradient_ratio"].item() == 0


def test_joint_measures_the_two_gradients_now_and_then_without_a_step() -> None:
    population = Population([agent(tiny("joint"))])
    draws = Draws(population.learning_plan(), [0])
    for step, there in ((100, True), (102, False)):
        metrics = population.update(batch_of(1, 6, 0), draws.draw(step), step)
        assert ("losses/gradient_ratio" in metrics) is there


def test_bf16_is_close_to_float32() -> None:
    config = dataclasses.replace(TINY, batch_size=32, filters=8, feature_size=16, hidden_size=64)
    metrics = []
    for kind in (torch.float32, torch.bfloat16):
        population = Population([agent(config, kind=kind)])
        drawn = Draws(population.learning_plan(), [0]).draw(0)
        metrics.append(population.update(batch_of(1, 32, 0), drawn, 0))
        assert all(weight.dtype == torch.float32 for weight in population.weights.values())
    wide, narrow = metrics
    for name in ("qf_loss", "contrastive_loss", "entropy", "critic_gradient_norm", "contrastive_gradient_norm"):
        assert narrow[f"losses/{name}"].item() == pytest.approx(wide[f"losses/{name}"].item(), rel=0.03), name


def test_acting() -> None:
    made = agent()
    population = Population([made])
    stacks = batch_of(1, 3, 0).obs
    drawn = Draws(population.acting_plan(3), [5]).draw(7)
    centre = stacks[0, :, :, 2:-2, 2:-2]
    with torch.no_grad():
        mean, log_std = made.policy(made.trunk(centre))
    torch.testing.assert_close(population.act(stacks, {}, 7, explore=False)[0], mean.tanh())
    noise = normal(drawn["exploration"]).view(3, ACTIONS)
    torch.testing.assert_close(population.act(stacks, drawn, 7, explore=True)[0], (mean + log_std.exp() * noise).tanh())
    assert not population.learns_at(3)
    assert population.learns_at(4)
    expected = 2 * uniform(drawn["random_action"]).view(1, 3, ACTIONS) - 1
    assert torch.equal(population.act(stacks, drawn, 3, explore=True), expected)
    torch.testing.assert_close(population.act(stacks, {}, 3, explore=False)[0], mean.tanh())


def state_batches(count: int) -> Iterator[Batch]:
    """A one-step task: the best action is (s, −s)."""
    for number in range(count):
        g = torch.Generator().manual_seed(number)
        state = 2 * torch.rand(1, 64, 3, generator=g) - 1
        action = 2 * torch.rand(1, 64, 2, generator=g) - 1
        best = torch.stack([state[..., 0], -state[..., 0]], -1) * 0.8
        reward = -(action - best).square().sum(-1)
        yield Batch(state, action, reward, state, torch.zeros(1, 64), torch.ones(1, 64), torch.zeros(1, 64))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_states_need_no_trunk_and_a_simple_task_is_learned(kind: torch.dtype) -> None:
    config = tiny(weight=0.0, augmentation="none", batch_size=64, hidden_size=64, initial_alpha=0.01)
    population = Population([SAC(config, (3,), 2, 0, kind)])
    assert not any("trunk" in name or "projection" in name for name in population.weights)
    draws = Draws(population.learning_plan(), [0])
    assert set(draws.draw(0)) == {"sample", "target_noise", "actor_noise"}
    for step, batch in enumerate(state_batches(600)):
        population.update(batch, draws.draw(step), step)
    state = torch.tensor([[[-0.9, 0.1, 0.3], [0.0, 0.5, -0.5], [0.7, -0.2, 0.0]]])
    actions = population.act(state, {}, 10_000, explore=False)
    wanted = 0.8 * torch.stack([state[..., 0], -state[..., 0]], -1)
    assert (actions - wanted).abs().max() < 0.15


def test_pixels_without_crop_or_contrast() -> None:
    config = tiny(weight=0.0, augmentation="none")
    population = Population([agent(config)])
    assert set(population.learning_plan()) == {"sample", "target_noise", "actor_noise"}
    metrics = train(population, [0], 3)
    assert metrics["losses/qf_loss"].isfinite().all()
    assert not any("contrastive" in name for name in (*metrics, *population.weights))


def test_keys_from_the_query_encoder_where_momentum_is_off() -> None:
    config = dataclasses.replace(
        TINY, contrastive=ContrastiveConfig(momentum=False, similarity="cosine", temperature=0.1)
    )
    made = agent(config)
    for weight in made.target_trunk.parameters():
        weight.data.fill_(math.nan)  # keys do not come from there
    views = made.views(batch_of(1, 6, 0), Draws(made.learning_draws(), [0]).draw(0))
    single = views._replace(**{name: tensor[0] for name, tensor in views._asdict().items()})
    losses, metrics, _ = made.representation(("contrastive",), single, {})
    q, k = (F.normalize(made.projection(made.trunk(x))) for x in (single.query, single.key))
    torch.testing.assert_close(losses["contrastive"], F.cross_entropy(q @ k.T / 0.1, torch.arange(6)))
    assert "losses/similarity_norm" not in metrics


@pytest.mark.parametrize(
    ("config", "shape", "words"),
    [
        (TINY, (6, 16, 22), "agent.crop_size is 18, but frames are 16 × 22"),
        (TINY, (3,), "agent.contrastive.weight to 0"),
        (dataclasses.replace(TINY, crop_size=14), (6, 22, 22), "14 × 14 are too small"),
    ],
)
def test_what_cannot_work_is_refused(config: SACConfig, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        SAC(config, shape, ACTIONS, 0)


@pytest.mark.skipif(not convolution.HAS_FUSED_OPERATOR, reason="this PyTorch has no fused convolution")
def test_an_update_by_the_plain_convolution_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, plain = (Population([agent(kind=torch.float32)]) for _ in range(2))
    train(fused, [0], 2)
    monkeypatch.setattr(convolution, "HAS_FUSED_OPERATOR", False)
    train(plain, [0], 2)
    for name, weight in fused.weights.items():
        assert (weight - plain.weights[name]).norm() <= 1e-3 * weight.norm() + 1e-4, name
