"""Names and specs: spellings, suggestions, tables against the libraries, and an import that brings no simulator."""

import json
import subprocess
import sys

import pytest

from curl_rl.envs import ATARI26, DMC6, DMC16, DMC28, FAKE, AtariProtocol, EnvSpec, episode_seed, resolve
from curl_rl.envs.tasks import ATARI_OTHERS, DMC_OTHERS, Task
from curl_rl.errors import UserError


@pytest.mark.parametrize("spelling", ["ms_pacman", "MsPacman", "ALE/MsPacman-v5", "mspacman", "MsPacmanNoFrameskip-v4"])
def test_every_spelling_of_a_game(spelling: str) -> None:
    assert resolve(spelling) == Task("ms_pacman", "atari")


@pytest.mark.parametrize(
    ("spelling", "name", "kind"),
    [
        ("kungfumaster", "kung_fu_master", "atari"),
        ("UpNDown", "up_n_down", "atari"),
        ("cheetah-run", "cheetah-run", "dmc"),
        ("dm_control/cheetah-run-v0", "cheetah-run", "dmc"),
        ("dm_control/ball_in_cup-catch-v0", "ball_in_cup-catch", "dmc"),
        ("Walker_Walk", "walker-walk", "dmc"),
        ("CartPole-v1", "CartPole-v1", "gym"),
        ("Blackjack-v1", "Blackjack-v1", "gym"),  # Gymnasium's card game, and not Atari's
        ("ALE/Blackjack-v5", "blackjack", "atari"),
        ("some_module:Its/Env-v3", "some_module:Its/Env-v3", "gym"),
        ("fake-discrete", "fake-discrete", "fake"),
    ],
)
def test_resolve(spelling: str, name: str, kind: str) -> None:
    assert resolve(spelling) == Task(name, kind)  # type: ignore[arg-type]


def test_ale_registered_with_gymnasium_changes_nothing() -> None:
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    assert resolve("ALE/Pong-v5") == resolve("PongNoFrameskip-v4") == resolve("pong") == Task("pong", "atari")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("cartpole-swigup", "cartpole-swingup"),
        ("ms_packman", "ms_pacman"),
        ("ALE/Bong-v5", "pong"),
        ("CartPol-v1", "CartPole-v1"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"no task '{wrong}'.*did you mean.*{meant}"):
        resolve(wrong)


def test_a_namespace_of_another_kind_is_not_overlooked() -> None:
    with pytest.raises(UserError, match="no task"):
        resolve("ALE/cheetah-run-v0")
    with pytest.raises(UserError, match="no task"):
        resolve("other/Pong-v5")


def test_before_start() -> None:
    assert resolve("pong").before_start == "zeros"
    assert {resolve(name).before_start for name in ("cheetah-run", "CartPole-v1", "fake-discrete")} == {"repeat"}


def test_tables_agree_with_the_libraries() -> None:
    script = """
import json
from ale_py import roms
from dm_control import suite
names = [["-".join(task) for task in tasks] for tasks in (suite.BENCHMARKING, suite.ALL_TASKS)]
print(json.dumps([roms.get_all_rom_ids(), *names]))
"""
    environ = {"MUJOCO_GL": "disable", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    games, benchmark, tasks = (set(names) for names in json.loads(done.stdout))
    two_players_only = {"combat", "joust", "maze_craze", "warlords"}
    assert set(ATARI26) | set(ATARI_OTHERS) == games - two_players_only
    assert set(DMC28) == benchmark
    assert set(DMC28) | set(DMC_OTHERS) == {name for name in tasks if not name.startswith("lqr-")}


def test_sizes_of_the_suites() -> None:
    assert [len(set(names)) for names in (ATARI26, DMC6, DMC16, DMC28)] == [26, 6, 16, 28]
    assert set(DMC6) <= set(DMC16) <= set(DMC28)


def test_importing_the_environments_imports_no_simulator() -> None:
    heavy = "torch", "mujoco", "dm_control", "ale_py", "cv2", "stable_baselines3"
    script = f"import sys, curl_rl.envs as e; e.EnvSpec('pong'); print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [*FAKE, "pong", "cheetah-run", "CartPole-v1"])
def test_specs_go_to_json_and_back(name: str) -> None:
    protocol = AtariProtocol(sticky=0.25) if name == "pong" else None
    spec = EnvSpec(name, size=64, action_repeat=2, protocol=protocol, training=False)
    assert EnvSpec(**json.loads(json.dumps(spec.as_dict()))) == spec


def test_spellings_make_equal_specs() -> None:
    assert EnvSpec("ALE/MsPacman-v5") == EnvSpec("ms_pacman")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"observation": "pixel"}, "observation is 'pixel'; choose one of pixels, state, both"),
        ({"shadows": "none"}, "shadows is 'none'"),
        ({"size": 0}, "size is 0"),
        ({"action_repeat": 1.5}, "action_repeat is 1.5"),
        ({"protocol": AtariProtocol()}, "no Atari game"),
    ],
)
def test_wrong_fields_are_refused(wrong: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        EnvSpec("cheetah-run", **wrong)


def test_episode_seeds_are_fixed_spread_and_unrelated() -> None:
    assert episode_seed(0, "train", 0) == 1310304614  # recorded: runs must stay reproducible across versions
    seeds = [
        episode_seed(run, purpose, n) for run in range(20) for purpose in ("train", "evaluate") for n in range(250)
    ]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 0
    assert max(seeds) < 2**31
    assert abs(sum(seed > 2**30 for seed in seeds) / len(seeds) - 0.5) < 0.03
