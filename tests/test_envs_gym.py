"""Strangers' environments: every form of observation and action that is understood, and sentences for the rest."""

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_sb3

from curl_rl.envs import make
from curl_rl.errors import UserError


class Stranger(gymnasium.Env):
    """Shows what it was given to show, remembers what was done to it, and ends after eight steps."""

    def __init__(self, observation_space: Space, action_space: Space | None = None, show: Any = None) -> None:
        self.observation_space, self.action_space = observation_space, action_space or Discrete(3)
        self.show, self.actions = show, []

    def _observation(self) -> Any:
        return self.observation_space.sample() if self.show is None else self.show

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.actions = []
        return self._observation(), {"stranger": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.actions.append(action)
        return self._observation(), float(len(self.actions)), len(self.actions) == 8, False, {}

    def __str__(self) -> str:
        return "<Stranger>"


PICTURE = np.random.default_rng(0).integers(0, 256, (36, 48, 3), dtype=np.uint8)
FORMS = {
    "uint8 HWC": (Box(0, 255, (36, 48, 3), np.uint8), PICTURE),
    "uint8 CHW": (Box(0, 255, (3, 36, 48), np.uint8), PICTURE.transpose(2, 0, 1)),
    "float in [0, 1]": (Box(0, 1, (36, 48, 3), np.float32), (PICTURE / 255).astype(np.float32)),
    "float in [0, 255]": (Box(0, 255, (3, 36, 48), np.float64), PICTURE.transpose(2, 0, 1).astype(np.float64)),
    "int32": (Box(0, 255, (36, 48, 3), np.int32), PICTURE.astype(np.int32)),
    "in a dict": (
        Dict({"eye": Box(0, 255, (36, 48, 3), np.uint8), "arm": Box(-1, 1, (4,)), "mode": Discrete(2)}),
        {"eye": PICTURE, "arm": np.ones(4, np.float32), "mode": 1},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_colour_picture_becomes_the_same_frame(form: str) -> None:
    space, shown = FORMS[form]
    env = make(lambda: Stranger(space, show=shown))
    frame, info = env.reset(seed=0)
    np.testing.assert_array_equal(frame, PICTURE.transpose(2, 0, 1))
    assert frame.flags.c_contiguous
    assert env.observation_space == Box(0, 255, (3, 36, 48), np.uint8)
    assert info == {"stranger": True, "continues": False}


@pytest.mark.parametrize("shape", [(36, 48), (36, 48, 1), (1, 36, 48)])
def test_grey_pictures(shape: tuple[int, ...]) -> None:
    shown = PICTURE[..., 0].reshape(shape)
    env = make(Stranger(Box(0, 255, shape, np.uint8), show=shown), size=None)
    np.testing.assert_array_equal(env.reset(seed=0)[0], PICTURE[None, ..., 0])
    assert make(Stranger(Box(0, 255, shape, np.uint8), show=shown), size=20).reset()[0].shape == (1, 20, 20)


def test_resizing_averages() -> None:
    shown = np.kron(PICTURE[:24, :24], np.ones((2, 2, 1), np.uint8))  # every pixel four times
    env = make(Stranger(Box(0, 255, (48, 48, 3), np.uint8), show=shown), size=24)
    np.testing.assert_array_equal(env.reset()[0], PICTURE[:24, :24].transpose(2, 0, 1))


def test_states_and_both() -> None:
    space, shown = FORMS["in a dict"]
    env = make(lambda: Stranger(space, show=shown), observation="both", size=30)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    np.testing.assert_array_equal(observation["state"], np.ones(4))
    np.testing.assert_array_equal(make(Stranger(space, show=shown), observation="state").reset()[0], np.ones(4))
    assert make("CartPole-v1", observation="state").observation_space.shape == (4,)


def test_boxes_of_actions_are_rescaled_and_reshaped() -> None:
    space = Box(np.array([[-2.0, 0.0]]), np.array([[2.0, 10.0]]), dtype=np.float64)
    env = make(Stranger(Box(0, 255, (36, 36, 3), np.uint8), space))
    assert env.action_space == Box(-1, 1, (2,), np.float32)
    env.reset(seed=0)
    for action in ([-1, -1], [0, 0.5], [1, 1], [5, -5]):
        env.step(np.array(action, np.float32))
    np.testing.assert_array_equal(env.unwrapped.actions, [[[-2, 0]], [[0, 7.5]], [[2, 10]], [[2, 0]]])  # type: ignore[attr-defined]


def test_discrete_actions_that_do_not_start_at_zero() -> None:
    env = make(Stranger(Box(0, 255, (36, 36, 3), np.uint8), Discrete(3, start=5)))
    assert env.action_space == Discrete(3)
    env.reset(seed=0)
    env.step(np.int64(2))
    assert env.unwrapped.actions == [7]  # type: ignore[attr-defined]


def test_actions_are_repeated_until_the_end() -> None:
    env = make(Stranger(Box(0, 255, (36, 36, 3), np.uint8)), action_repeat=3)
    env.reset(seed=0)
    steps = [env.step(0)[1:] for _ in range(3)]
    assert [(reward, info["raw_reward"], end) for reward, end, _, info in steps] == [
        (6, 6, False),
        (15, 15, False),
        (15, 15, True),  # the 7th and the 8th step only
    ]


@pytest.mark.parametrize(
    ("observation_space", "action_space", "sentence"),
    [
        (Box(-1, 1, (4,)), None, r"<Stranger> shows Box.*no picture. Needed: height × width.*AddRenderObservation"),
        (Box(-1, 1, (36, 36, 3)), None, "no picture"),
        (Box(0, 255, (36, 36, 4), np.uint8), None, "no picture"),
        (Dict({"left": FORMS["uint8 HWC"][0], "right": FORMS["uint8 HWC"][0]}), None, r"2 pictures \(left, right\)"),
        (FORMS["uint8 HWC"][0], MultiDiscrete([2, 3]), "actions of MultiDiscrete.*needed is Discrete or a bounded Box"),
        (FORMS["uint8 HWC"][0], Box(-np.inf, np.inf, (2,)), "finite bounds"),
    ],
)
def test_what_is_not_understood_is_refused(observation_space: Space, action_space: Space | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make(lambda: Stranger(observation_space, action_space))


def test_missing_environments_are_refused() -> None:
    with pytest.raises(UserError, match=r"cannot make 'no_such_module:Env-v0'.*no_such_module"):
        make("no_such_module:Env-v0")
    with pytest.raises(UserError, match=r"gave int; it must give a gymnasium\.Env"):
        make(lambda: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match="no vector for its state"):
        make(Stranger(FORMS["uint8 HWC"][0]), observation="state")


@pytest.mark.parametrize("observation", ["pixels", "state", "both"])
@pytest.mark.parametrize("actions", [Discrete(4), Box(-2, 5, (3,))])
def test_check_env(observation: str, actions: Space) -> None:
    space = Dict({"eye": Box(0, 1, (40, 40, 3), np.float32), "arm": Box(-1, 1, (4,))})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(spec is not set|render|recommend|Box|not a numpy).*")
        check_env(make(Stranger(space, actions), observation=observation), skip_render_check=True)  # type: ignore[arg-type]
        check_env_sb3(make(Stranger(space, actions), observation=observation))  # type: ignore[arg-type]
