"""Where something was measured, with what, and what a process takes of it."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = ("trio", "hypercorn", "msgspec", "xxhash", "httpx", "pyspark")


def machine_facts(directory: Path) -> dict[str, str | int]:
    """CPU, memory, kernel and the file system of `directory`; nothing that identifies the machine."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "filesystem": file_system(directory),
    }


def versions() -> dict[str, str]:
    """What the figures depend on beside our own code. Redis is only a reference, and may be missing."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return {**found, "redis": _redis_version()}


def _redis_version() -> str:
    program = shutil.which("redis-server")
    if program is None:
        return "not installed"
    text = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    return next((word.removeprefix("v=") for word in text.split() if word.startswith("v=")), "unknown")


def git_revision(directory: Path) -> str | None:
    """The commit that is checked out, with a plus if files differ from it; None without git or a repository."""
    try:
        commit = _git(directory, "rev-parse", "--short=12", "HEAD")
        changed = _git(directory, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if changed else "")


def _git(directory: Path, *words: str) -> str:
    command = ["git", "-C", str(directory), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def file_system(directory: Path) -> str:
    """The type of the file system that holds `directory`: that of the longest mount point above it."""
    directory = directory.resolve()
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, type_, *_ = line.split()
        if directory.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, type_
    return kind


def resident_mib(pid: int, *, peak: bool = False) -> float:
    """Resident memory of a process, now or at its highest."""
    name = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {name} for process {pid}")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, its own and the kernel's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ran_seconds(pid: int) -> float:
    """Processor time of the main thread of a process so far, to the nanosecond where it sleeps."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def waited_seconds(pid: int) -> float:
    """For how long the main thread of a process was ready to run and had no core so far."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


def tcp_memory_mib() -> float:
    """What the kernel holds for the TCP sockets of the whole machine."""
    for line in Path("/proc/net/sockstat").read_text().splitlines():
        if line.startswith("TCP:"):
            words = line.split()
            return int(words[words.index("mem") + 1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    raise RuntimeError("no TCP line in /proc/net/sockstat")
