"""One trial, or T of them in lockstep.

The agents' mathematics is written for one trial. One trial runs as the plain modules they are; for several, the states
are stacked and the same methods run under `vmap`. Gradients are taken outside of it: no trial's loss depends on another
trial, so the gradient of their sum is each one's own; Adam and the moving averages are elementwise.
Every tensor that goes in or comes out has a leading axis of trials, T = 1 included.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state

from .contrastive import move_towards
from .errors import UserError
from .phases import Adam, Descent, Phase
from .replay import Batch
from .rng import Purpose, normal, uniform
from .sac import SAC


class Population:
    """T agents of one configuration with their optimisers: what acts, learns, and is saved."""

    def __init__(self, agents: Sequence[SAC], device: torch.device | str = "cpu") -> None:
        self.trials, self.device = len(agents), torch.device(device)
        agents = [agent.to(self.device) for agent in agents]
        self.agent, self.config = agents[0], agents[0].config
        self.weights: dict[str, Tensor] = dict(self.agent.named_parameters())
        if self.trials > 1:
            self.weights, _ = stack_module_state(list(agents))
            self.agent = copy.deepcopy(self.agent).to("meta")  # only its code is used from here on
        specs = [spec for phase in self.agent.phases for descent in phase.descents for spec in descent.optimisers]
        self.optimisers = {spec: self._optimiser(spec) for spec in specs}

    def _optimiser(self, spec: Adam) -> torch.optim.Adam:
        weights = list(self._under(*spec.trains).values())
        optimiser = torch.optim.Adam(
            weights, spec.rate, spec.betas, spec.epsilon, fused=True, capturable=self.device.type == "cuda"
        )
        for weight in weights:  # at once, so that the state is complete, and its tensors stay the same, from the start
            moments = {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
            optimiser.state[weight] = {"step": torch.zeros((), device=self.device), **moments}
        return optimiser

    # -- what the loop asks -------------------------------------------------------------------------------------------

    def acting_plan(self, stacks: int) -> dict[str, tuple[Purpose, int]]:
        """The random words for acting on so many stacks of each trial."""
        return {name: (purpose, stacks * count) for name, (purpose, count) in self.agent.acting_draws().items()}

    def learning_plan(self) -> dict[str, tuple[Purpose, int]]:
        """The random words for one agent step's learning: those of its first update, then of its second, and so on."""
        updates = self.config.updates_per_agent_step
        return {name: (purpose, updates * count) for name, (purpose, count) in self.agent.learning_draws().items()}

    def learns_at(self, agent_step: int) -> bool:
        """Whether this agent step learns; before, actions are uniformly random."""
        return agent_step >= self.config.first_random_agent_steps

    @torch.no_grad()
    def act(self, stacks: Tensor, drawn: Mapping[str, Tensor], agent_step: int, explore: bool) -> Tensor:
        """Actions [T, n, |A|] for stacks [T, n, …]: random at first, the policy's samples, or its means."""
        shape = (*stacks.shape[:2], self.agent.actions)
        if explore and not self.learns_at(agent_step):
            return 2 * uniform(drawn["random_action"]).view(shape) - 1
        noise = (normal(drawn["exploration"]).view(shape),) if explore else ()
        return self._call("act", stacks, *noise)

    def update(self, batch: Batch, drawn: Mapping[str, Tensor], agent_step: int) -> dict[str, Tensor]:
        """Learn from a batch [T, updates × B, …]; the newest metrics [T], not fetched.

        Metrics are of the phases that ran. Where the agent step is a multiple of all their periods, none is missing.
        """
        metrics: dict[str, Tensor] = {}
        counts = {name: count for name, (_, count) in self.agent.learning_draws().items()}
        for i in range(self.config.updates_per_agent_step):
            words = {name: drawn[name][:, i * count : (i + 1) * count] for name, count in counts.items()}
            part = slice(i * self.config.batch_size, (i + 1) * self.config.batch_size)
            metrics |= self._update(Batch(*(field[:, part] for field in batch)), words, agent_step)
        return metrics

    def _update(self, batch: Batch, words: Mapping[str, Tensor], agent_step: int) -> dict[str, Tensor]:
        views = self.agent.views(batch, words)
        metrics: dict[str, Tensor] = {}
        carry: dict[str, Tensor] = {}
        for phase in self.agent.phases:
            if agent_step % phase.every == 0:
                carry = {} if phase.fresh else carry
                if phase.method:
                    losses, measured, carry = self._call(phase.method, phase.losses, views, carry)
                    metrics |= {name: value.detach() for name, value in measured.items()}
                    metrics |= self._descend(phase, losses)
                self._average(phase)
        return self.agent.summarised(metrics)

    # -- one phase ----------------------------------------------------------------------------------------------------

    def _descend(self, phase: Phase, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All gradients at the present weights, then all steps; returns the norms that were asked for."""
        last = len(phase.descents) - 1
        gradients = [self._gradient(descent, losses, keep=i < last) for i, descent in enumerate(phase.descents)]
        norms: dict[str, Tensor] = {}
        for descent, gradient in zip(phase.descents, gradients, strict=True):
            measured = [g for name, g in gradient.items() if descent.measure and name.startswith(descent.measure)]
            if measured:
                flat = torch.cat([g.reshape(self.trials, -1) for g in measured], dim=1)
                norms[f"losses/{'_'.join(descent.losses)}_gradient_norm"] = flat.norm(dim=1)
            for spec in descent.optimisers:
                self._step(spec, gradient)
        return norms

    def _gradient(self, descent: Descent, losses: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
        """Of the sum of the descent's losses, for all weights that its optimisers train or that it measures."""
        prefixes = [prefix for spec in descent.optimisers for prefix in spec.trains]
        weights = self._under(*prefixes, *filter(None, [descent.measure]))
        total = torch.stack([losses[name] for name in descent.losses]).sum()
        return dict(zip(weights, torch.autograd.grad(total, list(weights.values()), retain_graph=keep), strict=True))

    def _step(self, spec: Adam, gradient: Mapping[str, Tensor]) -> None:
        trained = self._under(*spec.trains)
        for name, weight in trained.items():
            weight.grad = gradient[name].contiguous()  # the fused Adam wants the weight's own layout
        self.optimisers[spec].step()
        for weight in trained.values():
            weight.grad = None

    def _average(self, phase: Phase) -> None:
        for average in phase.averages:
            targets = self._under(average.target)
            if targets:
                online = [self.weights[average.online + name.removeprefix(average.target)] for name in targets]
                move_towards(targets.values(), online, average.tau)

    def _under(self, *prefixes: str) -> dict[str, Tensor]:
        return {name: weight for name, weight in self.weights.items() if name.startswith(prefixes)}

    def _call(self, method: str, *arguments: Any) -> Any:
        """A method of the agent for every trial; within it, tensors (in trees or not) have no axis of trials."""
        if self.trials == 1:
            return _each(getattr(self.agent, method)(*_each(arguments, lambda x: x[0])), lambda x: x[None])

        def one_trial(weights: dict[str, Tensor], inputs: Any) -> Any:
            return functional_call(self.agent, weights, (method, *inputs))

        axes = _each(arguments, lambda x: 0, otherwise=lambda x: None)
        return torch.vmap(one_trial, (0, axes))(self.weights, arguments)

    # -- state --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, targets and Adam's moments by name, [T, …]: row i is the state of trial i alone.

        Most are the living tensors, not copies: the next update changes them.
        """
        return {name: value.contiguous() for name, value in self._state().items()}

    def _state(self) -> dict[str, Tensor]:
        state = {f"agent.{name}": self._rows(weight) for name, weight in self.weights.items()}
        for spec, optimiser in self.optimisers.items():
            for name, weight in self._under(*spec.trains).items():
                moments = optimiser.state[weight]
                state[f"adam.{spec.name}.{name}.exp_avg"] = self._rows(moments["exp_avg"])
                state[f"adam.{spec.name}.{name}.exp_avg_sq"] = self._rows(moments["exp_avg_sq"])
                state[f"adam.{spec.name}.{name}.step"] = moments["step"].expand(self.trials)
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The way back, in place."""
        own = self._state()
        strange = sorted(own.keys() ^ state.keys()) or [k for k in own if own[k].shape != state[k].shape]
        if strange:
            raise UserError(
                f"The saved agent does not fit: its {strange[0]} differs; take the config it was saved with."
            )
        for name, value in own.items():
            shared = name.startswith("adam.") and name.endswith(".step")  # one counter for all trials
            value[:1].copy_(state[name][:1]) if shared else value.copy_(state[name])

    def trial(self, i: int) -> SAC:
        """A copy of trial i's agent, as a plain module."""
        agent = copy.deepcopy(self.agent).to_empty(device=self.device)
        agent.load_state_dict({name: self._rows(weight)[i] for name, weight in self.weights.items()})
        return agent

    def _rows(self, tensor: Tensor) -> Tensor:
        return tensor.detach() if self.trials > 1 else tensor.detach()[None]


def _each(tree: Any, f: Callable[[Tensor], Any], otherwise: Callable[[Any], Any] = lambda x: x) -> Any:
    """f of every tensor in dicts, tuples and named tuples."""
    if isinstance(tree, Tensor):
        return f(tree)
    if isinstance(tree, dict):
        return {name: _each(value, f, otherwise) for name, value in tree.items()}
    if isinstance(tree, tuple):
        items = [_each(value, f, otherwise) for value in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    return otherwise(tree)
