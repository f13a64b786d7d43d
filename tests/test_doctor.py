"""The doctor: each missing thing is found, named, and given the command that mends it."""

import json

import pytest

from curl_rl import doctor
from curl_rl.doctor import Check
from curl_rl.envs import gl
from curl_rl.errors import UserError

GIGABYTE = 1_000_000_000
COMPLETE = {
    "torch": "2.13.0+cpu",
    "dm-control": "1.0.50",
    "mujoco": "3.17.0",
    "opencv-python-headless": "5.0.0.93",
}


def versions(**changed: str | None):
    """What is installed: everything, but for these (with _ for -)."""
    return (COMPLETE | {name.replace("_", "-"): version for name, version in changed.items()}).get


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 14)])
def test_pythons_that_do(version):
    assert doctor.check_python(version).ok


def test_a_python_too_old():
    check = doctor.check_python((3, 10))
    assert not check.ok
    assert "python3.11" in check.remedy


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "3.0.0"])
def test_torches_that_do(version):
    assert doctor.check_torch(versions(torch=version)).ok


@pytest.mark.parametrize("version", [None, "2.10.1", "1.13.0"])
def test_torches_that_do_not(version):
    check = doctor.check_torch(versions(torch=version))
    assert not check.ok
    assert check.remedy.endswith("pip install torch==2.13.0")


@pytest.mark.parametrize("mujoco", [None, "3.2.5", "4.0.0", "4.1.2"])
def test_mujocos_under_which_no_task_loads(mujoco, monkeypatch):
    monkeypatch.setattr("sys.version_info", (3, 12, 1, "final", 0))
    check = doctor.check_simulators(versions(mujoco=mujoco))
    assert not check.ok
    assert "'mujoco>=3.17,<4'" in check.remedy  # quoted, or the shell would take > for a redirection


def test_simulators_that_fit():
    assert doctor.check_simulators(versions()).ok


def test_without_dm_control_on_a_python_that_has_no_wheels_for_it(monkeypatch):
    monkeypatch.setattr("sys.version_info", (3, 13, 0, "final", 0))
    check = doctor.check_simulators(versions(dm_control=None, mujoco=None))
    assert not check.ok
    assert "PYTHON=python3.12" in check.remedy


def test_two_builds_of_opencv():
    assert doctor.check_opencv(versions()).ok
    check = doctor.check_opencv(versions(opencv_python="4.10.0.84"))
    assert not check.ok
    assert not check.needed  # DMControl does without
    assert "uninstall -y opencv-python opencv-python-headless" in check.remedy


def test_no_opencv():
    assert not doctor.check_opencv(versions(opencv_python_headless=None)).ok


def test_no_gl(monkeypatch):
    def choose():
        raise UserError("No OpenGL works here (egl: none; osmesa: none); install it.")

    monkeypatch.setattr("curl_rl.envs.gl.choose", choose)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    check = doctor.check_gl()
    assert (check.ok, check.detail) == (False, "No OpenGL works here (egl: none; osmesa: none)")
    assert check.remedy.startswith("sudo apt-get install")
    assert check.needed


def test_the_user_chose_a_gl_that_does_not_work(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "no-such-backend")
    monkeypatch.delenv("CURL_RL_GL", raising=False)
    gl.choose.cache_clear()
    check = doctor.check_gl()
    assert not check.ok
    assert "no-such-backend" in check.detail
    assert check.remedy == "unset MUJOCO_GL"


@pytest.mark.gl
def test_gl_that_works():
    check = doctor.check_gl()
    assert check.ok
    assert "ms a frame" in check.detail


def test_a_game_that_does_not_load(monkeypatch):
    def make(task):
        raise ImportError("no ale_py")

    monkeypatch.setattr("curl_rl.envs.make", make)
    check = doctor.check_atari()
    assert (check.ok, check.detail, check.needed) == (False, "no ale_py", False)
    assert "ale-py" in check.remedy


def test_a_game_loads():
    check = doctor.check_atari()
    assert check.ok
    assert "ms a decision" in check.detail


def test_the_device_is_named():
    check = doctor.check_device()
    assert check.ok
    assert check.detail.startswith(("CPU: ", "GPU: "))


@pytest.mark.parametrize(
    ("memory", "disk", "expected"),
    [(3, 3, [True, True]), (1, 3, [False, True]), (3, 0, [True, False]), (None, 3, [True, True])],
)
def test_room(memory, disk, expected):
    checks = doctor.check_room(GIGABYTE // 2, memory and memory * GIGABYTE, disk * GIGABYTE)
    assert [check.ok for check in checks] == expected


def test_the_default_job_keeps_one_frame_a_decision():
    assert doctor.default_frame_bytes() == 12_500 * 3 * 100 * 100


@pytest.mark.parametrize(("needed", "status"), [(True, 1), (False, 0)])
def test_status_and_remedies(needed, status, monkeypatch, capsys):
    """Only what the default job needs decides; the remedy is printed on one line, however narrow the terminal."""
    monkeypatch.setenv("COLUMNS", "40")
    remedy = "mend --that 'thing>=1' which is [quite] far gone, with a long line"
    checks = [Check("Here", True, "well"), Check("Thing", False, "gone", remedy, needed)]
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    assert doctor.run() == status
    assert f"  {remedy}\n" in capsys.readouterr().out


def test_json(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda: [Check("Thing", False, "gone", "mend it")])
    assert doctor.run(["--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ready"] is False
    assert found["checks"] == [
        {"name": "Thing", "ok": False, "detail": "gone", "remedy": "mend it", "needed": True},
    ]
    assert found["versions"]["torch"]


def test_other_arguments_are_refused():
    with pytest.raises(UserError, match="--jsn"):
        doctor.run(["--jsn"])


def test_what_failed_first_is_not_hidden_by_what_follows(monkeypatch):
    """Without PyTorch and simulators nothing that needs them is tried."""
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    names = [check.name for check in doctor.examine()]
    assert {"PyTorch", "DMControl"} <= set(names)
    assert not {"Device", "OpenGL", "Memory"} & set(names)
