"""T environments as one Gymnasium vector environment, in this process or in workers, with manual resets."""

import os
from collections.abc import Sequence
from multiprocessing import util
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from curl_rl.envs.crew import dismiss, hire
from curl_rl.envs.spec import Description, EnvSpec
from curl_rl.envs.worker import Buffers, Failures
from curl_rl.errors import UserError

StepResult = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class EnvironmentLost(UserError):
    """Some environments are gone: their process died, or they raised. The fleet goes on with the `survivors`."""

    def __init__(self, reasons: Failures, names: Sequence[str], survivors: Sequence[int], result: Any) -> None:
        lost = "; ".join(f"environment {index} ({names[index]}): {reason}" for index, reason in sorted(reasons.items()))
        went_on = f"{len(survivors)} of {len(names)} go on" if survivors else "none is left"
        super().__init__(
            f"Lost {lost}. {went_on[0].upper()}{went_on[1:]}; run the same command again to resume them all."
        )
        self.lost = tuple(sorted(reasons))
        self.reasons = reasons
        self.survivors = tuple(survivors)
        self.result = result
        """What the call would have returned; the rows of lost environments mean nothing."""


class Fleet(VectorEnv):
    """Steps T environments. Nothing is reset by itself: `reset(seed=seeds, options={"reset_mask": mask})` does it.

    `step_async` and `step_wait` are the halves of `step`: between them the environments of worker processes run.
    `infos` are arrays: `raw_reward` from a step, `continues` from a reset.
    """

    def __init__(self, specs: Sequence[EnvSpec], *, workers: int | None = None) -> None:
        """`workers` processes share the environments. 0 steps them in this process: the default for one environment."""
        if not specs:
            raise UserError("A fleet needs at least one environment.")
        self.num_envs = len(specs)
        self.names = [spec.name for spec in specs]
        self.alive = np.ones(self.num_envs, bool)
        """Which environments are not lost."""
        if workers is None:
            workers = 0 if self.num_envs == 1 else _cores()
        self.closed = True  # until there is something to close
        self._crews = hire(specs, min(workers, self.num_envs))
        self.closed = False
        # Runs before multiprocessing ends its children at exit, which would wait for workers that wait for us.
        self._dismiss = util.Finalize(self, dismiss, args=(self._crews,), exitpriority=10)
        try:
            self._describe({i: d for crew in self._crews for i, d in crew.descriptions().items()})
            descriptor = self._buffers.allocate()
            for crew in self._crews:
                crew.attach(self._buffers, descriptor)
            os.close(descriptor)
        except BaseException:
            self.close()
            raise
        self._seeders = [np.random.default_rng() for _ in specs]  # for resets without a seed
        self._needs_reset = np.ones(self.num_envs, bool)
        self._stepping = False

    def _describe(self, descriptions: dict[int, Description]) -> None:
        self.descriptions = [descriptions[index] for index in range(self.num_envs)]
        """What a learner must know, for each environment."""
        first = self.descriptions[0]
        for name, other in zip(self.names, self.descriptions, strict=True):
            if other.observation_space != first.observation_space or other.before_start != first.before_start:
                raise UserError(
                    f"A fleet's environments must look alike: {self.names[0]} gives {first.observation_space} and "
                    f"{name} gives {other.observation_space}."
                )
        spaces = [description.action_space for description in self.descriptions]
        discrete = [space for space in spaces if isinstance(space, gymnasium.spaces.Discrete)]
        if discrete and len(discrete) == len(spaces):
            self.action_counts = np.array([space.n for space in discrete])
            """How many actions each environment has; `single_action_space` is the largest."""
            self.single_action_space = discrete[int(self.action_counts.argmax())]
        elif all(space == spaces[0] for space in spaces):
            self.single_action_space = spaces[0]
        else:
            raise UserError(
                f"A fleet's environments must take the same kind of action, not {spaces[0]} and {spaces[-1]}."
            )
        self.single_observation_space = first.observation_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self._buffers = Buffers(self.single_observation_space, self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes where `options["reset_mask"]` is set (without one, everywhere); other observations stay."""
        self._refuse_while_stepping("reset")
        given = [seed + index for index in range(self.num_envs)] if isinstance(seed, int) else seed
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, bool))) & self.alive
        for index in np.flatnonzero(mask):
            own = given[int(index)] if given is not None else None
            if own is not None:
                self._seeders[index] = np.random.default_rng(own)
            self._buffers.seed[index] = own if own is not None else self._seeders[index].integers(2**31)
        self._buffers.reset[:] = mask
        self._buffers.continues[:] = False
        self._needs_reset[mask] = False
        for crew in self._crews:
            if any(mask[index] for index in crew.indices):
                crew.ask("reset")
        failures = self._collect()
        result = self._buffers.observations(), {"continues": self._buffers.continues.copy()}
        self._report(failures, result)
        return result

    def step(self, actions: Any) -> StepResult:
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start a step with one action per environment; those of lost environments are ignored."""
        self._refuse_while_stepping("step")
        if waiting := np.flatnonzero(self._needs_reset & self.alive).tolist():
            raise ValueError(f"the episodes of environments {waiting} are over (or have not begun): reset them first")
        actions = np.asarray(actions)
        wanted = self._buffers.action
        if actions.shape != wanted.shape or not np.can_cast(actions.dtype, wanted.dtype, "same_kind"):
            raise ValueError(
                f"the fleet takes actions {wanted.shape} of {wanted.dtype}, not {actions.shape} of {actions.dtype}"
            )
        self._buffers.action[:] = actions
        self._buffers.reward[:] = self._buffers.raw_reward[:] = 0
        self._buffers.terminated[:] = self._buffers.truncated[:] = False
        for crew in self._crews:
            crew.ask("step")
        self._stepping = True

    def step_wait(self) -> StepResult:
        """The result of the step under way."""
        if not self._stepping:
            raise ValueError("step_wait() without step_async()")
        failures = self._collect()
        self._stepping = False
        buffers = self._buffers
        for index in failures:
            buffers.reward[index] = buffers.raw_reward[index] = 0
            buffers.terminated[index] = buffers.truncated[index] = False
        self._needs_reset |= buffers.terminated | buffers.truncated
        infos = {"raw_reward": buffers.raw_reward.copy()}
        flags = buffers.terminated.copy(), buffers.truncated.copy()
        result = (buffers.observations(), buffers.reward.copy(), *flags, infos)
        self._report(failures, result)
        return result

    def snapshot(self, index: int) -> dict[str, Any]:
        """Plain data for `restore`: the environment's own state, or its episode's seed and actions."""
        self._refuse_while_stepping("snapshot")
        result, failures = self._ask_one("snapshot", index)
        self._report(failures, None)
        return result

    def restore(self, index: int, snapshot: dict[str, Any], expected_frame: Any) -> bool:
        """Bring an environment back. False if it does not show `expected_frame`: not deterministic, so reset it."""
        self._refuse_while_stepping("restore")
        _, failures = self._ask_one("restore", index, snapshot)
        self._report(failures, None)
        same = self._buffers.shows(index, expected_frame)
        self._needs_reset[index] = not same
        return same

    def close_extras(self, **kwargs: Any) -> None:
        self._dismiss()

    def _ask_one(self, request: str, index: int, *arguments: Any) -> tuple[Any, Failures]:
        if not self.alive[index]:
            raise ValueError(f"environment {index} ({self.names[index]}) is lost")
        crew = next(crew for crew in self._crews if index in crew.indices)
        crew.ask(request, index, *arguments)
        return crew.answer()

    def _collect(self) -> Failures:
        failures: Failures = {}
        for crew in self._crews:
            if crew.asked:
                failures.update(crew.answer()[1])
        return failures

    def _report(self, failures: Failures, result: Any) -> None:
        failures = {index: reason for index, reason in failures.items() if self.alive[index]}
        if failures:
            self.alive[list(failures)] = False
            raise EnvironmentLost(failures, self.names, np.flatnonzero(self.alive).tolist(), result)

    def _refuse_while_stepping(self, what: str) -> None:
        if self._stepping:
            raise ValueError(f"{what} while a step is under way: call step_wait() first")


def _cores() -> int:
    """The cores that this process may use, where the system can tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
