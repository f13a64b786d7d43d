"""The command line: thin commands over the package. Flags are made from the config's dataclasses."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from . import __version__
from .errors import UserError

if TYPE_CHECKING:
    from .config import Config, Runtime

EXAMPLES = (
    ("curl-rl train cartpole-swingup --agent.batch-size 128", "CURL + SAC on DMControl, at a CPU's pace"),
    ("curl-rl train ms_pacman --preset random", "a game of Atari"),
    ("curl-rl doctor", "does everything work here?"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a user's mistake ends in one sentence and exit code 2, never in a traceback."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help", "help"):
        _print_help()
        return 0
    if name == "--version":
        print(__version__)
        return 0
    try:
        if name not in COMMANDS:
            from .config import suggestion

            raise UserError(f"There is no command {name!r}{suggestion(name, COMMANDS)}; `curl-rl` lists them all.")
        return COMMANDS[name].run(argv[1:])
    except UserError as error:
        print(f"curl-rl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("curl-rl: interrupted; the same command goes on from the last checkpoint.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left, for example `| head`
        sys.stderr.close()
        return 0


# ---------------------------------------------------------------------------------------------------------------- train


def train(argv: list[str]) -> int:
    """Parse TASK, --preset and the flags made from the config, then train."""
    config, runtime = parse_run("train", argv)
    from .build import train

    outcome = train(config, runtime, command=shlex.join(["curl-rl", "train", *argv]))
    print(outcome.sentence)
    if outcome.finished:
        _print_what_there_is(outcome.directory)
    return 0


def _print_what_there_is(run: Path) -> None:
    """Where curve, video and agent lie, and what to type next."""
    whole_agent = run / "agent.safetensors"
    things = {
        "curve": run / "curve.png",
        "video": run / "video.gif",
        "agent": whole_agent,
        "scores": run / "scores.csv",
    }
    for name, path in things.items():
        if path.exists():
            print(f"  {name:<7} {path}")
    print("Next:")
    print(f"  curl-rl eval {run} --episodes 100")
    print(f"  curl-rl play {run}")
    print(f"  tensorboard --logdir {run}")


def parse_run(command: str, argv: list[str]) -> tuple[Config, Runtime]:
    """`TASK [--preset NAME] [flags]`: the preset's config on that task, changed by the flags."""
    from .config import Config, Runtime
    from .presets import configure

    argv = list(argv)
    preset = _take_option(argv, "--preset")
    wants_help = any(word in ("-h", "--help") for word in argv)
    if argv and not argv[0].startswith("-"):
        task = argv.pop(0)
    elif wants_help:
        task = "cartpole-swingup"
    else:
        raise UserError(f"Name the task first: `curl-rl {command} cartpole-swingup`; `curl-rl presets` shows methods.")
    default = configure(task, preset)

    import tyro

    unprefixed = tyro.conf.arg(name="")
    fields = [("config", Annotated[Config, unprefixed]), ("runtime", Annotated[Runtime, unprefixed])]
    Flags: Any = make_dataclass("Flags", fields, frozen=True)
    description = f"{command} {default.task} with {default.preset}; defaults are those of this preset on this task."
    flags = _parse(
        tyro.conf.AvoidSubcommands[Flags],  # type: ignore[misc]  # made at run time
        argv,
        Flags(default, Runtime()),
        f"curl-rl {command} TASK [--preset NAME]",
        description,
    )
    return flags.config, flags.runtime


def _take_option(argv: list[str], name: str) -> str | None:
    """Remove `--name VALUE` or `--name=VALUE` from the arguments."""
    for i, word in enumerate(argv):
        if word.startswith(name + "="):
            del argv[i]
            return word.partition("=")[2]
        if word == name:
            if i + 1 == len(argv):
                raise UserError(f"{name} needs a value; `curl-rl presets` shows what there is.")
            value = argv[i + 1]
            del argv[i : i + 2]
            return value
    return None


def _parse(kind: Any, argv: list[str], default: Any, program: str, description: str) -> Any:
    """tyro's parsing, with its boxed complaints turned into our one sentence."""
    import tyro

    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(kind, args=argv, default=default, prog=program, description=description)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise UserError(_sentence(complaint.getvalue())) from None


def _sentence(box: str) -> str:
    """'Unrecognized options: --agent.batch-sise, 3; did you mean --agent.batch-size?' from tyro's box of that."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box).replace("│", " ")
    drawn = "╭" in plain  # otherwise the terminal knows no such characters, and the title stands in a part of its own
    parts = re.split(r"^[ ╭╰]*[─-]{5,}.*\n|^╭.*\n", plain, flags=re.MULTILINE)
    parts = [" ".join(part.split()) for part in parts if part.strip()][0 if drawn else 1 :]
    said, rest = parts[0].rstrip("."), parts[1:]
    near = next((re.search(r"--[\w.-]+", part) for part in rest if part.startswith("Perhaps you meant")), None)
    return said + (f"; did you mean {near[0]}?" if near else "; --help lists all flags.")


# ------------------------------------------------------------------------------------------------------ the other ones


def presets(argv: list[str]) -> int:
    """Each preset, what it is, and how it differs from the default of its agent."""
    from rich.console import Console
    from rich.table import Table

    from .presets import PRESETS, TASK_ROWS

    _no_arguments("presets", argv)
    table = Table("preset", "what it is", "how it differs from the default")
    for name, row in PRESETS.items():
        table.add_row(
            name, row.summary, "\n".join(f"{field} = {value}" for field, value in row.overrides.items()) or "–"
        )
    tasks = Table("task", "its own settings")
    for name, overrides in TASK_ROWS.items():
        tasks.add_row(name, ", ".join(f"{field} = {value}" for field, value in overrides.items()))
    console = Console()
    console.print(table)
    console.print(tasks)
    return 0


def doctor(argv: list[str]) -> int:
    """What works here, and the one command that mends each thing that does not."""
    from .doctor import run

    return run(argv)


def speed(argv: list[str]) -> int:
    """What an update and a whole decision cost on this machine, beside a naive update in the same run."""
    argv = list(argv)
    as_json = "--json" in argv
    if as_json:
        argv.remove("--json")
    config, runtime = parse_run("speed", argv)
    from .speed import measure

    result = measure(config, runtime)
    if as_json:
        print(json.dumps(result))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "value", title=f"{config.task}, {config.preset}")
    for name, value in result.items():
        table.add_row(name, "–" if value is None else str(value))
    Console().print(table)
    return 0


def evaluate(argv: list[str]) -> int:
    """Play full episodes with the newest agent of a run."""

    @dataclass(frozen=True)
    class Flags:
        episodes: int = 10
        """Full episodes to play."""
        seed: int = 0
        """Decides the episodes; training never plays these."""
        device: str = "auto"
        """`cpu`, `cuda`, …"""
        json: bool = False
        """Print one JSON object."""

    run, flags = _run_and_flags("eval", argv, Flags)
    from .build import evaluate_run

    result = evaluate_run(run, flags.episodes, flags.seed, flags.device)
    if flags.json:
        print(json.dumps(result))
    else:
        print(
            f"{result['task']} with {result['preset']} after {result['env_steps']:,} env steps: "
            f"return {result['mean']:.1f} ± {result['std']:.1f} over {flags.episodes} episodes."
        )
    return 0


def play(argv: list[str]) -> int:
    """Film one episode of the newest agent of a run."""

    @dataclass(frozen=True)
    class Flags:
        seed: int = 0
        """Decides the episode."""
        size: int = 320
        """Height and width of the video, where the environment can choose."""

    run, flags = _run_and_flags("play", argv, Flags)
    from .build import film_run

    score, file = film_run(run, flags.seed, flags.size)
    print(f"Return {score:.1f}; the video is {file}.")
    return 0


def export(argv: list[str]) -> int:
    """Write the newest agent of a run as one file, with its card."""
    if not 1 <= len(argv) <= 2 or argv[0].startswith("-"):
        raise UserError(
            "Usage: `curl-rl export RUN [FILE]` writes the newest agent of a run, by default to RUN/agent.safetensors."
        )
    run = Path(argv[0])
    file = Path(argv[1]) if len(argv) == 2 else run / "agent.safetensors"
    from .agent import export

    export(run, file)
    print(f'{file} and its card are written; in Python, `curl_rl.load("{file}")` gives the agent.')
    return 0


def _run_and_flags(command: str, argv: list[str], kind: type) -> tuple[Path, Any]:
    """`RUN [flags]`."""
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help")):
        raise UserError(f"Name the run directory first: `curl-rl {command} runs/TASK/PRESET/seed-0`.")
    run = Path(argv[0]) if not argv[0].startswith("-") else Path()
    flags = _parse(
        kind, argv[1:] if run != Path() else argv, kind(), f"curl-rl {command} RUN", COMMANDS[command].summary
    )
    return run, flags


def scores(argv: list[str]) -> int:
    """Gather the scores.csv of runs into one file of results."""
    from .scores import gather, write_scores

    if len(argv) < 2 or argv[-1].startswith("-") or any(word in ("-h", "--help") for word in argv):
        raise UserError("Usage: `curl-rl scores RUN… RESULT.csv` gathers the scores of finished runs into one file.")
    *runs, target = map(Path, argv)
    found = gather(runs)
    write_scores(found, target)
    print(f"{len(found)} rows written to {target}.")
    return 0


def _no_arguments(command: str, argv: list[str]) -> None:
    if argv and argv[0] not in ("-h", "--help"):
        raise UserError(f"`curl-rl {command}` takes no arguments, but was given {shlex.join(argv)}.")


# ----------------------------------------------------------------------------------------------------------------- help


@dataclass(frozen=True)
class Command:
    run: Callable[[list[str]], int]
    usage: str
    summary: str


COMMANDS = {
    "train": Command(train, "train TASK [--preset NAME] [flags]", "train an agent; again: go on where it stopped"),
    "eval": Command(evaluate, "eval RUN [--episodes N]", "play full episodes with a run's newest agent"),
    "play": Command(play, "play RUN", "film one of them"),
    "export": Command(export, "export RUN [FILE]", "its agent as one file: `curl_rl.load(FILE)`"),
    "speed": Command(speed, "speed TASK [flags] [--json]", "what an update and a decision cost on this machine"),
    "presets": Command(presets, "presets", "the methods, and how each differs from the default"),
    "scores": Command(scores, "scores RUN… FILE", "gather the scores of finished runs into one CSV"),
    "doctor": Command(doctor, "doctor", "what works on this machine, and how to mend what does not"),
}


def _print_help() -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    print(f"curl-rl {__version__}: learn control from pixels with few samples, and compare methods honestly.\n")
    for command in COMMANDS.values():
        print(f"  curl-rl {command.usage:<{width}}  {command.summary}")
    print("\nExamples:")
    for line, why in EXAMPLES:
        print(f"  {line:<{width + 10}}  # {why}")
    print("\nFlags of a command: `curl-rl COMMAND --help`. Tasks: any of DMControl, Atari, or a Gymnasium id.")


if __name__ == "__main__":
    sys.exit(main())
