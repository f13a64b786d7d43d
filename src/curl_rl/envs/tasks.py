"""Names: every task that curl-rl knows by itself, and what any spelling of one means."""

import difflib
import re
from dataclasses import dataclass
from typing import Literal

import gymnasium

from curl_rl.errors import UserError

Kind = Literal["dmc", "atari", "fake", "gym"]

# fmt: off
DMC6 = (
    "finger-spin", "cartpole-swingup", "reacher-easy", "cheetah-run", "walker-walk", "ball_in_cup-catch",
)
DMC16 = (
    "ball_in_cup-catch", "cartpole-balance", "cartpole-balance_sparse", "cartpole-swingup", "cartpole-swingup_sparse",
    "cheetah-run", "finger-spin", "finger-turn_easy", "finger-turn_hard", "hopper-stand", "pendulum-swingup",
    "reacher-easy", "reacher-hard", "walker-run", "walker-stand", "walker-walk",
)
DMC28 = (
    *DMC16, "acrobot-swingup", "acrobot-swingup_sparse", "fish-upright", "fish-swim", "hopper-hop", "humanoid-stand",
    "humanoid-walk", "humanoid-run", "manipulator-bring_ball", "point_mass-easy", "swimmer-swimmer6",
    "swimmer-swimmer15",
)
# The rest of dm_control's suite: outside its benchmark set, but just as usable. Its `lqr` tasks have unbounded actions.
DMC_OTHERS = (
    "cartpole-two_poles", "cartpole-three_poles", "dog-stand", "dog-walk", "dog-trot", "dog-run", "dog-fetch",
    "humanoid-run_pure_state", "humanoid_CMU-stand", "humanoid_CMU-walk", "humanoid_CMU-run", "manipulator-bring_peg",
    "manipulator-insert_ball", "manipulator-insert_peg", "point_mass-hard", "quadruped-walk", "quadruped-run",
    "quadruped-escape", "quadruped-fetch", "stacker-stack_2", "stacker-stack_4",
)

ATARI26 = (
    "alien", "amidar", "assault", "asterix", "bank_heist", "battle_zone", "boxing", "breakout", "chopper_command",
    "crazy_climber", "demon_attack", "freeway", "frostbite", "gopher", "hero", "jamesbond", "kangaroo", "krull",
    "kung_fu_master", "ms_pacman", "pong", "private_eye", "qbert", "road_runner", "seaquest", "up_n_down",
)
# Every other game for one player that ALE carries.
ATARI_OTHERS = (
    "adventure", "air_raid", "asteroids", "atlantis", "atlantis2", "backgammon", "basic_math", "beam_rider",
    "berzerk", "blackjack", "bowling", "carnival", "casino", "centipede", "crossbow", "darkchambers", "defender",
    "donkey_kong", "double_dunk", "earthworld", "elevator_action", "enduro", "entombed", "et", "fishing_derby",
    "flag_capture", "frogger", "galaxian", "gravitar", "hangman", "haunted_house", "human_cannonball", "ice_hockey",
    "journey_escape", "kaboom", "keystone_kapers", "king_kong", "klax", "koolaid", "laser_gates", "lost_luggage",
    "mario_bros", "miniature_golf", "montezuma_revenge", "mr_do", "name_this_game", "othello", "pacman", "phoenix",
    "pitfall", "pitfall2", "pooyan", "riverraid", "robotank", "sir_lancelot", "skiing", "solaris", "space_invaders",
    "space_war", "star_gunner", "superman", "surround", "tennis", "tetris", "tic_tac_toe_3d", "time_pilot",
    "trondead", "turmoil", "tutankham", "venture", "video_checkers", "video_chess", "video_cube", "video_pinball",
    "wizard_of_wor", "word_zapper", "yars_revenge", "zaxxon",
)
# fmt: on

FAKE = ("fake-discrete", "fake-lives", "fake-continuous")


@dataclass(frozen=True)
class Task:
    """A task under its one canonical name, and the kind of environment behind it."""

    name: str
    kind: Kind

    @property
    def before_start(self) -> Literal["zeros", "repeat"]:
        """What a stack holds before an episode's first frame: zeros (Atari's way) or that frame repeated."""
        return "zeros" if self.kind == "atari" else "repeat"


def _squash(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


_BUILT_IN = {
    **{_squash(name): Task(name, "dmc") for name in DMC28 + DMC_OTHERS},
    **{_squash(name): Task(name, "atari") for name in ATARI26 + ATARI_OTHERS},
    **{_squash(name): Task(name, "fake") for name in FAKE},
}
_KIND_OF_NAMESPACE: dict[str, Kind] = {"ale": "atari", "atari": "atari", "dm_control": "dmc", "dmc": "dmc"}


def resolve(task: str) -> Task:
    """The task that a spelling means: `MsPacman`, `ALE/MsPacman-v5` and `ms_pacman` are one; a Gymnasium id stays."""
    if _belongs_to_gymnasium(task):
        return Task(task, "gym")
    namespace, _, name = task.rpartition("/")
    kind = _KIND_OF_NAMESPACE.get(namespace.lower())
    if not namespace or kind:
        name = re.sub(r"-v\d+$", "", name)
        name = re.sub(r"(NoFrameskip|Deterministic)$", "", name)
        found = _BUILT_IN.get(_squash(name))
        if found and kind in (None, found.kind):
            return found
    if ":" in task:  # "module:Id-v0": Gymnasium imports the module, which registers the id
        return Task(task, "gym")
    raise UserError(f"There is no task {task!r}{_did_you_mean(task)}")


def _belongs_to_gymnasium(task: str) -> bool:
    """Registered with Gymnasium by somebody other than ALE or Shimmy, whose games and tasks we make ourselves."""
    registered = gymnasium.registry.get(task)
    return registered is not None and not str(registered.entry_point).startswith(("ale_py", "shimmy"))


def _did_you_mean(task: str) -> str:
    names = [found.name for found in _BUILT_IN.values()]
    close = difflib.get_close_matches(task, [*names, *gymnasium.registry], n=3, cutoff=0.6)
    bare = re.sub(r"-v\d+$", "", task.rpartition("/")[2])
    squashed = difflib.get_close_matches(_squash(bare), _BUILT_IN, n=3, cutoff=0.75)
    suggestions = list(dict.fromkeys([*(_BUILT_IN[match].name for match in squashed), *close]))[:3]
    if suggestions:
        return f": did you mean {' or '.join(suggestions)}?"
    return "; DMControl's, Atari's and all registered Gymnasium ids will do, e.g. cartpole-swingup, ms_pacman."
