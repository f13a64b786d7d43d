"""Which OpenGL draws MuJoCo's pictures. It is chosen before MuJoCo is imported, since MuJoCo asks only once."""

import functools
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from curl_rl.errors import UserError

BACKENDS = ("egl", "osmesa")  # EGL first: never slower, uses a GPU where there is one, and Mesa has dropped OSMesa
INSTALL = "sudo apt-get install -y --no-install-recommends libegl1 libgl1"
_REMEMBERED = "CURL_RL_GL"  # an environment variable, so that child processes need not try again

_RENDER_ONCE = """
import json, mujoco
from dm_control import _render
model = mujoco.MjModel.from_xml_string('<mujoco><worldbody><light pos="0 0 3"/><geom size=".5"/></worldbody></mujoco>')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 64, 64)
renderer.update_scene(data)
assert renderer.render().max() > 0, "the picture is black"
from OpenGL import GL
text = lambda name: GL.glGetString(name).decode()
print(json.dumps({"vendor": text(GL.GL_VENDOR), "renderer": text(GL.GL_RENDERER), "version": text(GL.GL_VERSION)}))
"""


@dataclass(frozen=True)
class Backend:
    """A backend that has drawn a picture here."""

    name: str
    vendor: str
    renderer: str
    version: str


@functools.cache
def choose() -> Backend:
    """The backend that works here, tried in a process of its own; sets MUJOCO_GL for this process and its children.

    The user's own MUJOCO_GL is never overruled.
    """
    users = os.environ.get("MUJOCO_GL")
    if remembered := _remembered(users):
        return remembered
    wanted = users or _taken_by_dm_control()
    backend, reason = _try(wanted) if wanted else _first_that_works()
    if backend is None:
        complaint = _complaint(wanted, users, reason)
        os.environ[_REMEMBERED] = json.dumps({"MUJOCO_GL": users, "complaint": complaint})
        raise UserError(complaint)
    os.environ["MUJOCO_GL"] = backend.name
    os.environ[_REMEMBERED] = json.dumps({"MUJOCO_GL": backend.name, "backend": asdict(backend)})
    return backend


def environment() -> dict[str, str]:
    """The variables by which a process that was not started as our child knows the choice."""
    names = ("MUJOCO_GL", _REMEMBERED, "PYOPENGL_PLATFORM")
    return {name: os.environ[name] for name in names if name in os.environ}


def milliseconds_per_frame(frames: int = 20) -> float:
    """Time of one 100x100 picture of cartpole-swingup, for `curl-rl doctor`."""
    from curl_rl.envs.spec import make

    env = make("cartpole-swingup")
    env.reset(seed=0)  # makes the context
    start = time.perf_counter()
    for _ in range(frames):
        env.render()
    elapsed = time.perf_counter() - start
    env.close()
    return 1000 * elapsed / frames


def _taken_by_dm_control() -> str | None:
    """What dm_control chose by itself, if somebody imported it before us: too late to choose anything else."""
    taken = sys.modules.get("dm_control._render")
    return taken.BACKEND or "disable" if taken else None


def _remembered(users: str | None) -> Backend | None:
    """What was found before, here or in the parent, if it was found for the same MUJOCO_GL."""
    found = json.loads(os.environ.get(_REMEMBERED, "{}"))
    if not found or found["MUJOCO_GL"] != users:
        return None
    if "complaint" in found:
        raise UserError(found["complaint"])
    return Backend(**found["backend"])


def _complaint(wanted: str | None, users: str | None, reason: str) -> str:
    if not wanted:
        return f"No OpenGL works here, so DMControl has no pixels ({reason}); run `{INSTALL}`."
    if users:
        return f"MUJOCO_GL={users} cannot draw here ({reason}); unset it, and curl-rl chooses, or run `{INSTALL}`."
    return (
        f"dm_control was imported before curl-rl's first environment and took {wanted}, which cannot draw here "
        f"({reason}); make the environment first, or set MUJOCO_GL=egl."
    )


def _first_that_works() -> tuple[Backend | None, str]:
    reasons = []
    for name in BACKENDS:
        backend, reason = _try(name)
        if backend:
            return backend, ""
        reasons.append(f"{name}: {reason}")
    return None, "; ".join(reasons)


def _try(name: str) -> tuple[Backend | None, str]:
    """The backend if it draws, else the reason why not."""
    environ = {key: value for key, value in os.environ.items() if key != "PYOPENGL_PLATFORM"} | {"MUJOCO_GL": name}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RENDER_ONCE], env=environ, capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return None, "no picture within 60 seconds"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return None, (errors or lines)[-1][:200]
    return Backend(name, **json.loads(done.stdout.splitlines()[-1])), ""
