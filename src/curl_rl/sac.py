"""Soft actor-critic with the contrastive objective: the networks of one trial, how it acts, and every loss.

Equation numbers are the paper's. Which loss trains what, and when, is the list that `phases` returns.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .augment import centre_crop, random_crop
from .config import SACConfig
from .contrastive import Contrastive, momentum_copy
from .errors import UserError
from .networks import Perceptron, Projection, Trunk, TwinCritics, initialise
from .phases import Adam, Average, Descent, Phase
from .replay import Batch
from .rng import Purpose, normal

Losses = dict[str, Tensor]
Metrics = dict[str, Tensor]
Carry = dict[str, Tensor]
"""What a phase hands on to later ones of the same update."""

MEASURE_EVERY_AGENT_STEPS = 100
"""How often `joint` measures its two gradients apart, at the cost of one more update's worth of passes."""


class Views(NamedTuple):
    """A batch as the losses see it: each observation in a crop of its own, and the noise of the actions drawn there."""

    query: Tensor
    key: Tensor
    next: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    target_noise: Tensor
    actor_noise: Tensor


class SAC(nn.Module):
    """One trial's agent. Observations are uint8 stacks [N, C, H, W], or states [N, D], which need no trunk."""

    def __init__(
        self,
        config: SACConfig,
        observation_shape: tuple[int, ...],
        actions: int,
        seed: int,
        arithmetic: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.config, self.observation_shape, self.actions = config, observation_shape, actions
        self.pixels = len(observation_shape) == 3
        self.crops = self.pixels and config.augmentation == "crop"
        self.phases = phases(config)
        check(config, observation_shape)

        latent, hidden = config.feature_size if self.pixels else observation_shape[0], config.hidden_size
        self.trunk = Trunk(self._image(), config.filters, arithmetic) if self.pixels else nn.Identity()
        self.projection = self._projection(arithmetic)
        self.critics = TwinCritics(latent, actions, hidden, arithmetic)
        self.actor = nn.Sequential(self._projection(arithmetic), Perceptron(latent, hidden, 2 * actions, arithmetic))
        if config.contrastive.weight:
            self.contrastive = Contrastive(latent, config.contrastive.similarity, config.contrastive.temperature)
        initialise(self, seed)

        # The key encoder is the target critic's encoder (paper, "Shared Representations").
        self.target_trunk = momentum_copy(self.trunk)
        self.target_projection = momentum_copy(self.projection)
        self.target_critics = momentum_copy(self.critics)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(config.initial_alpha)))
        if arithmetic == torch.float64:
            self.double()

    def _image(self) -> tuple[int, int, int]:
        channels, height, width = self.observation_shape
        return (channels, self.config.crop_size, self.config.crop_size) if self.crops else (channels, height, width)

    def _projection(self, arithmetic: torch.dtype) -> nn.Module:
        if not isinstance(self.trunk, Trunk):
            return nn.Identity()
        c = self.config
        return Projection(self.trunk.outputs, c.feature_size, c.projection_hidden, c.projection_tanh, arithmetic)

    # -- what an agent step and an update need ------------------------------------------------------------------------

    def acting_draws(self) -> dict[str, tuple[Purpose, int]]:
        """The random words of one decision."""
        return {
            "exploration": (Purpose.EXPLORATION_NOISE, self.actions),
            "random_action": (Purpose.RANDOM_ACTION, self.actions),
        }

    def learning_draws(self) -> dict[str, tuple[Purpose, int]]:
        """The random words of one update."""
        batch = self.config.batch_size
        draws = {
            "sample": (Purpose.SAMPLE, batch),
            "target_noise": (Purpose.TARGET_NOISE, batch * self.actions),
            "actor_noise": (Purpose.ACTOR_NOISE, batch * self.actions),
        }
        if self.crops:
            draws |= {"query": (Purpose.CROP_QUERY, 2 * batch), "next": (Purpose.CROP_NEXT, 2 * batch)}
            if self.config.contrastive.weight:
                draws["key"] = (Purpose.CROP_KEY, 2 * batch)
        return draws

    def views(self, batch: Batch, words: Mapping[str, Tensor]) -> Views:
        """Augment a batch; every tensor starts with [T, B]."""
        # Without a contrastive loss nobody looks at keys.
        keyed = batch.obs if self.config.contrastive.weight else batch.obs[:, :0]
        seen = {"query": batch.obs, "key": keyed, "next": batch.next_obs}
        if self.crops:
            for name in seen.keys() & words.keys():
                pairs = words[name].unflatten(-1, (-1, 2))
                seen[name] = random_crop(seen[name], self.config.crop_size, pairs, self.config.crop_offsets)
        noises = {
            name: normal(words[name]).unflatten(-1, (-1, self.actions)) for name in ("target_noise", "actor_noise")
        }
        return Views(**seen, action=batch.action, reward=batch.reward, discount=batch.discount, **noises)

    # -- what runs under vmap -----------------------------------------------------------------------------------------

    def forward(self, method: str, *arguments: object) -> object:
        """One of the methods below, by name: the way in for torch.func.functional_call, which calls modules only."""
        return getattr(self, method)(*arguments)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions in (−1, 1) for [N, …] observations: the policy's mean, or a sample where noise is given."""
        if self.crops:
            observations = centre_crop(observations, self.config.crop_size)
        mean, log_std = self.policy(self.trunk(observations))
        return (mean if noise is None else mean + log_std.exp() * noise).tanh()

    def representation(self, names: tuple[str, ...], views: Views, carry: Carry) -> tuple[Losses, Metrics, Carry]:
        """Critic and contrastive loss, or one of them, from one pass of the trunk over the queries."""
        features = self.trunk(views.query)
        latent = self.projection(features)
        losses: Losses = {}
        metrics: Metrics = {}
        if "critic" in names:
            losses["critic"] = self.critic_loss(latent, views, metrics)
        if "contrastive" in names:
            losses["contrastive"] = self.contrastive_loss(latent, views, metrics)
        return losses, metrics, {"features": features.detach()}

    def improvement(self, names: tuple[str, ...], views: Views, carry: Carry) -> tuple[Losses, Metrics, Carry]:
        """Actor and temperature, on features that neither of them trains."""
        with torch.no_grad():
            features = carry["features"] if "features" in carry else self.trunk(views.query)
            latent = self.projection(features)
        action, log_probability = self.sample(features, views.actor_noise)
        value = self.critics(latent, action).amin(0)
        alpha = self.log_alpha.exp()
        losses = {
            "actor": -(value - alpha.detach() * log_probability).mean(),  # (3), as a loss
            "alpha": (alpha * (-log_probability.detach() + self.actions)).mean(),  # target entropy −|A|
        }
        metrics = {
            "losses/actor_loss": losses["actor"],
            "losses/alpha_loss": losses["alpha"],
            "losses/alpha": alpha,
            "losses/entropy": -log_probability.mean(),
        }
        return losses, metrics, {"features": features}

    def summarised(self, metrics: Metrics) -> Metrics:
        """How strong the critic's pull on the trunk is against the contrastive loss's, where both were measured."""
        critic, contrastive = (metrics.get(f"losses/{name}_gradient_norm") for name in ("critic", "contrastive"))
        if critic is None or contrastive is None:
            return metrics
        # Finite also where the contrastive loss is solved so well that its gradient underflows.
        return {**metrics, "losses/gradient_ratio": critic / contrastive.clamp(min=1e-12)}

    # -- the mathematics ----------------------------------------------------------------------------------------------

    def critic_loss(self, latent: Tensor, views: Views, metrics: Metrics) -> Tensor:
        """(1): both critics against one target, squared errors averaged over the batch and summed."""
        target = self.target(views)
        values = self.critics(latent, views.action.to(latent.dtype))  # [2, B]
        loss = (values - target).square().mean(-1).sum()
        metrics |= {"losses/qf_loss": loss, "losses/qf_values": values.mean()}
        return loss

    @torch.no_grad()
    def target(self, views: Views) -> Tensor:
        """r + γ (1 − d) T with T of (2): the lesser target value of the policy's action, and its entropy."""
        observation = self.trunk.read(views.next) if isinstance(self.trunk, Trunk) else views.next
        action, log_probability = self.sample(self.trunk(observation), views.target_noise)
        latent = self.target_projection(self.target_trunk(observation))
        value = self.target_critics(latent, action).amin(0) - self.log_alpha.exp() * log_probability
        return views.reward + views.discount * value

    def contrastive_loss(self, latent: Tensor, views: Views, metrics: Metrics) -> Tensor:
        """(4): each query against the keys of the whole batch."""
        with torch.no_grad():
            if self.config.contrastive.momentum:
                keys = self.target_projection(self.target_trunk(views.key))
            else:
                keys = self.projection(self.trunk(views.key))
        loss, accuracy = self.contrastive(latent, keys)
        metrics |= {"losses/contrastive_loss": loss, "losses/contrastive_accuracy": accuracy}
        if self.contrastive.W is not None:
            metrics["losses/similarity_norm"] = self.contrastive.W.norm()
        return self.config.contrastive.weight * loss

    def policy(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log σ before the squashing, [N, |A|] each."""
        mean, x = self.actor(features).chunk(2, dim=-1)
        low, high = self.config.log_std_min, self.config.log_std_max
        return mean, low + 0.5 * (high - low) * (x.tanh() + 1)

    def sample(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action a = tanh(μ + σξ) and its log-probability."""
        mean, log_std = self.policy(features)
        noise = noise.to(mean.dtype)
        raw = mean + log_std.exp() * noise
        return raw.tanh(), squashed_log_probability(raw, log_std, noise)


def squashed_log_probability(raw: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """log π(tanh(raw)) where raw = μ + σξ: the normal's density over the slope of tanh, summed over the action."""
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_slope = 2 * (math.log(2) - raw - F.softplus(-2 * raw))  # log(1 − tanh²), exact also where tanh rounds to 1
    return (gaussian - log_slope).sum(-1)


def phases(config: SACConfig) -> tuple[Phase, ...]:
    """The update, as a table of contents."""
    rate, contrastive = config.learning_rate, config.contrastive
    encoder = ("trunk.", "projection.")
    critic = Descent(("critic",), (Adam("critic", (*encoder, "critics."), rate),), measure="trunk.")
    contrast = Descent(("contrastive",), (Adam("contrastive", (*encoder, "contrastive."), rate),), measure="trunk.")
    temperature = Adam("alpha", ("log_alpha",), config.alpha_learning_rate, (config.alpha_beta1, 0.999))
    improvement = Phase(
        "actor", "improvement", every=config.actor_every_agent_steps, fresh=contrastive.step == "authors",
        descents=(
            Descent(("actor",), (Adam("actor", ("actor.",), rate),)),
            Descent(("alpha",), (temperature,)),
        ),
    )  # fmt: skip
    averages = Phase(
        "averages", every=config.target_every_agent_steps,
        averages=(
            Average("target_trunk.", "trunk.", config.encoder_tau),
            Average("target_projection.", "projection.", config.encoder_tau),
            Average("target_critics.", "critics.", config.critic_tau),
        ),
    )  # fmt: skip

    if not contrastive.weight:
        return Phase("critic", "representation", (critic,)), improvement, averages
    if contrastive.step == "own":
        return Phase("representation", "representation", (critic, contrast)), improvement, averages
    if contrastive.step == "joint":
        everything = (*encoder, "critics.", "contrastive.")
        both = Descent(("critic", "contrastive"), (Adam("representation", everything, rate),))
        # A sum's gradient does not show its parts: now and then they are measured on their own, and nobody steps.
        parts = (Descent(("critic",), measure="trunk."), Descent(("contrastive",), measure="trunk."))
        measurement = Phase("measurement", "representation", parts, every=MEASURE_EVERY_AGENT_STEPS, fresh=True)
        return measurement, Phase("representation", "representation", (both,)), improvement, averages
    # The released code: after all else a fresh pass, and two Adams that both hold the encoder, one of them also W.
    twice = (Adam("encoder", encoder, rate), Adam("contrastive", (*encoder, "contrastive."), rate))
    return (
        Phase("critic", "representation", (critic,)),
        improvement,
        averages,
        Phase("contrastive", "representation", (Descent(("contrastive",), twice, measure="trunk."),)),
    )


def check(config: SACConfig, observation_shape: tuple[int, ...]) -> None:
    """Refuse what cannot work, by name."""
    if len(observation_shape) == 3:
        if config.augmentation == "crop" and min(observation_shape[1:]) < config.crop_size:
            height, width = observation_shape[1:]
            raise UserError(
                f"agent.crop_size is {config.crop_size}, but frames are {height} × {width}; "
                "render larger frames (env.size) or take a smaller crop."
            )
    elif config.contrastive.weight:
        raise UserError("The contrastive loss needs pixels; for state observations set agent.contrastive.weight to 0.")
