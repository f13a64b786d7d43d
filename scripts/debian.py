"""Debian's and Ubuntu's package manager, where it may be used without asking for a password."""

import os
import shutil
import subprocess


def apt_install(*packages: str) -> bool:
    """Install system packages; False where there is no apt, no right to use it, or no such package."""
    if shutil.which("apt-get") is None:
        return False
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if as_root and (shutil.which("sudo") is None or subprocess.run([*as_root, "true"], capture_output=True).returncode):
        return False
    print(f"Installing {' '.join(packages)} by apt-get", flush=True)
    # A machine just made has no package lists yet, and may be updating itself, hence the wait for the lock.
    apt = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    subprocess.run([*apt, "update"], capture_output=True)  # one unreachable list of several must not stop the others
    command = [*apt, "install", "-y", "--no-install-recommends", *packages]
    install = subprocess.run(command, capture_output=True, text=True)
    if install.returncode:
        print(install.stderr.strip(), flush=True)
    return install.returncode == 0


def apt_line(*packages: str) -> str:
    """The command to hand to somebody who may install system packages."""
    return f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install {' '.join(packages)}"
