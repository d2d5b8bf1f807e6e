"""Where something was measured."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path


def machine_facts(directory: Path) -> dict[str, str | int]:
    """CPU, memory, kernel, Python and the file system of `directory`; nothing that identifies the machine."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "filesystem": file_system(directory),
    }


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
