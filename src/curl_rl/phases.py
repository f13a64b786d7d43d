"""An agent's update as data: the table of contents that a population carries out."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Adam:
    """One Adam: the parameters under `trains` (prefixes of their names) and its constants."""

    name: str
    trains: tuple[str, ...]
    rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8


@dataclass(frozen=True)
class Descent:
    """One gradient, of the sum of the named losses, and the optimisers that step by it: none only measures it."""

    losses: tuple[str, ...]
    optimisers: tuple[Adam, ...] = ()
    measure: str = ""
    """Report the gradient's norm on the parameters under this prefix, as a metric named after the losses."""


@dataclass(frozen=True)
class Average:
    """target ← (1 − τ) target + τ online, for all parameters under the two prefixes."""

    target: str
    online: str
    tau: float


@dataclass(frozen=True)
class Phase:
    """Some losses from one forward pass, what descends them, and the averages that move afterwards.

    All gradients of a phase are taken at the same weights; then its optimisers step, in their order.
    """

    name: str
    method: str = ""
    """The agent's method that computes the losses; none where only averages move."""
    descents: tuple[Descent, ...] = ()
    averages: tuple[Average, ...] = ()
    every: int = 1
    """Agent steps from one time to the next."""
    fresh: bool = False
    """Start without what earlier phases of this update handed on (features of the weights before their steps)."""

    @property
    def losses(self) -> tuple[str, ...]:
        """Every loss that some descent needs, once."""
        return tuple(dict.fromkeys(loss for descent in self.descents for loss in descent.losses))
