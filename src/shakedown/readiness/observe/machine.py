"""The machine under the process: instance type, image, processor, memory, accelerator, driver. Imports no torch.

Everything is read from files and from the operating system; the metadata service of EC2 is asked only on demand. A source
that is not there makes the fact *not known*, with the reason. ``root`` is the file system to read, ``/`` but for tests.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from urllib.error import HTTPError

from ..evidence.identity import Fact, Group

_METADATA_SERVICE = "http://169.254.169.254/latest/"
_METADATA_SECONDS = 1.0
_NO_LIMIT = 1 << 60  # control groups write "no limit" as the largest number of whole pages
_EC2 = "Amazon EC2"


def known(group: Group, name: str, value: str, source: str, otherwise: str) -> Fact:
    """A fact from `value`, or, where that is empty, the reason `otherwise`."""
    value = " ".join(value.split())
    return (
        Fact(group=group, name=name, value=value, source=source)
        if value
        else Fact(group=group, name=name, unknown=otherwise)
    )


def facts(environment: Mapping[str, str], ec2: bool = False, root: Path = Path("/")) -> list[Fact]:
    """Everything known about this machine. `environment` is the process's, for the cores that it was given."""
    service = _ask_metadata_service() if ec2 else {}
    return [*_host(root, service, ec2), *_processor(root), *_accelerator(environment, root)]


# --- host ------------------------------------------------------------------------------------------------------------


def _host(root: Path, service: dict[str, str], asked: bool) -> Iterator[Fact]:
    cloud = _cloud_init(root)
    vendor, product = _dmi(root, "sys_vendor"), _dmi(root, "product_name")
    for value, source in (
        (service.get("instance-type", ""), "EC2 metadata service"),
        (cloud.get("instance-type", ""), "/run/cloud-init/instance-data.json"),
        (product if vendor == _EC2 else "", "/sys/devices/virtual/dmi/id/product_name"),
    ):
        if value:
            yield Fact(group="machine", name="instance type", value=value, source=source)
            break
    else:
        yield Fact(group="machine", name="instance type", unknown=_no_instance(root, vendor, product, service, asked))
    yield known("machine", "operating system", _system(root), "/etc/os-release", "no /etc/os-release")
    image = service.get("ami-id", "") or cloud.get("ami-id", "")
    asked_for = f"the metadata service said: {service.get('error', 'nothing')}" if asked else "ask with --ec2"
    yield known(
        "machine",
        "OS image",
        image,
        "EC2 metadata service" if service.get("ami-id") else "/run/cloud-init/instance-data.json",
        f"no cloud-init data here; {asked_for}",
    )
    yield (
        known("machine", "container", _container(root), "marker files", "")
        if _container(root)
        else Fact(group="machine", name="container", value="none seen", source="/.dockerenv, /run/.containerenv")
    )
    yield Fact(group="machine", name="kernel", value=f"{platform.system()} {platform.release()}", source="uname")
    yield Fact(group="machine", name="architecture", value=platform.machine(), source="uname")
    yield Fact(group="machine", name="host", value=platform.node() or "localhost", source="uname")


def _dmi(root: Path, name: str) -> str:
    return _text(root / "sys/devices/virtual/dmi/id" / name)


def _no_instance(root: Path, vendor: str, product: str, service: dict[str, str], asked: bool) -> str:
    here = f"the machine says {vendor} {product}".strip() if vendor or product else "no DMI data here"
    if asked:
        return f"{here}; the EC2 metadata service said: {service.get('error', 'nothing')}"
    return f"{here}; ask the EC2 metadata service with --ec2" if not vendor or vendor == _EC2 else f"{here}, not EC2"


def _system(root: Path) -> str:
    """``Ubuntu 26.04 LTS`` from os-release; on macOS its version."""
    for place in ("etc/os-release", "usr/lib/os-release"):
        fields = dict(re.findall(r'^(\w+)="?(.*?)"?$', _text(root / place), re.MULTILINE))
        if fields:
            name = fields.get("PRETTY_NAME", "")
            return name or f"{fields.get('NAME', '')} {fields.get('VERSION_ID', '')}"
    return f"macOS {platform.mac_ver()[0]}" if platform.system() == "Darwin" else ""


def _cloud_init(root: Path) -> dict[str, str]:
    """What cloud-init kept of the metadata service's answers, readable by everybody; empty where there is none."""
    try:
        data = json.loads((root / "run/cloud-init/instance-data.json").read_text())
        found = data.get("ds", {}).get("meta_data", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def _container(root: Path) -> str:
    for marker, name in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if (root / marker).exists():
            return name
    return ""


def _ask_metadata_service() -> dict[str, str]:
    """Instance type and image id from EC2's metadata service (version 2, token first), or ``error``."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # link-local: a proxy cannot reach it
    try:
        wish = urllib.request.Request(
            _METADATA_SERVICE + "api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        )
        with opener.open(wish, timeout=_METADATA_SECONDS) as answer:
            token = answer.read().decode()
        found = {}
        for key in ("instance-type", "ami-id"):
            question = urllib.request.Request(
                f"{_METADATA_SERVICE}meta-data/{key}", headers={"X-aws-ec2-metadata-token": token}
            )
            with opener.open(question, timeout=_METADATA_SECONDS) as answer:
                found[key] = answer.read().decode().strip()
        return found
    except HTTPError as error:
        return {"error": f"{error.code} {error.reason}"}
    except (OSError, ValueError) as error:  # URLError and timeouts are OSErrors
        return {"error": f"nothing within {_METADATA_SECONDS:.0f} s ({getattr(error, 'reason', error)})"}


# --- processor and memory --------------------------------------------------------------------------------------------


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def allocated_cores() -> int:
    """Cores that this process may run on, by affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor(root: Path) -> Iterator[Fact]:
    yield known("machine", "processor", cpu_model(), "/proc/cpuinfo", "the system does not tell")
    yield known("machine", "cores", str(os.cpu_count() or ""), "os.cpu_count", "the system does not tell")
    quota = _quota(root)
    limit = f", control group's quota {quota:g}" if quota else ", no quota"
    yield Fact(
        group="machine",
        name="cores allocated",
        value=f"{allocated_cores()} by affinity{limit}",
        source="sched_getaffinity, cpu.max" if hasattr(os, "sched_getaffinity") else "os.cpu_count",
    )
    total = _total_memory(root)
    yield known("machine", "memory", _gib(total) if total else "", "/proc/meminfo", "no /proc/meminfo and no sysconf")
    limited = _memory_limit(root)
    yield Fact(
        group="machine",
        name="memory limit",
        value=_gib(limited) if limited else "none",
        source="memory.max of the control group",
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _total_memory(root: Path) -> int:
    """Bytes of main memory, 0 where the system does not tell."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    if found:
        return int(found[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def _memory_limit(root: Path) -> int:
    """Bytes that the control group allows, 0 without a limit."""
    for place in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _text(root / place)
        if text.isdigit() and int(text) < _NO_LIMIT:
            return int(text)
    return 0


def _quota(root: Path) -> float:
    """Cores' worth of time that the control group allows, 0 without a limit."""
    both = _text(root / "sys/fs/cgroup/cpu.max").split()
    if not both:
        folder = root / "sys/fs/cgroup/cpu"
        both = [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
    try:
        quota, period = float(both[0]), float(both[1])
    except (ValueError, IndexError):
        return 0.0
    return quota / period if quota > 0 and period > 0 else 0.0


# --- accelerator -----------------------------------------------------------------------------------------------------


def _accelerator(environment: Mapping[str, str], root: Path) -> Iterator[Fact]:
    chips = sorted(p.name for p in (root / "dev").glob("neuron[0-9]*"))
    yield Fact(
        group="accelerator",
        name="Neuron devices",
        value=f"{len(chips)} ({', '.join(chips)})" if chips else "none",
        source="/dev/neuron*",
    )
    given = environment.get("NEURON_RT_VISIBLE_CORES"), environment.get("NEURON_RT_NUM_CORES")
    if given[0]:
        cores, source = f"cores {given[0]}", "NEURON_RT_VISIBLE_CORES"
    else:
        cores, source = f"{given[1]} cores" if given[1] else "", "NEURON_RT_NUM_CORES"
    # Without either variable the runtime takes every core of the machine (AWS, Neuron Runtime configuration).
    yield known(
        "accelerator",
        "NeuronCores allocated",
        cores or ("all that the runtime finds" if chips else ""),
        source if cores else "neither NEURON_RT_VISIBLE_CORES nor NEURON_RT_NUM_CORES is set",
        "no Neuron device, and neither NEURON_RT_VISIBLE_CORES nor NEURON_RT_NUM_CORES is set",
    )
    yield known(
        "accelerator",
        "logical-core configuration",
        environment.get("NEURON_LOGICAL_NC_CONFIG", ""),
        "NEURON_LOGICAL_NC_CONFIG",
        "NEURON_LOGICAL_NC_CONFIG is not set (AWS: 2 on trn2 and trn3 then)",
    )
    yield known(
        "accelerator",
        "driver",
        _text(root / "sys/module/neuron/version"),
        "/sys/module/neuron/version",
        "the kernel module neuron is not loaded",
    )
    packages = system_packages(root)
    for name, package in (("runtime library", "aws-neuronx-runtime-lib"), ("collectives", "aws-neuronx-collectives")):
        yield known("accelerator", name, packages.get(package, ""), package, f"no package {package} is installed")


def system_packages(root: Path = Path("/")) -> dict[str, str]:
    """Versions of AWS's system packages (``aws-neuronx-*``), from dpkg's database or from rpm."""
    found = {}
    for entry in _text(root / "var/lib/dpkg/status").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", entry, re.MULTILINE))
        if fields.get("Package", "").startswith("aws-neuronx-") and "installed" in fields.get("Status", "").split():
            found[fields["Package"]] = fields.get("Version", "")
    return found or _rpm_packages()


@cache
def _rpm_packages() -> dict[str, str]:
    try:
        done = subprocess.run(
            ["rpm", "-qa", "--queryformat", "%{NAME} %{VERSION}\n", "aws-neuronx-*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line) if not done.returncode else {}


def _text(path: Path) -> str:
    """A file's text without blanks around it; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
