"""The documented baseline of TorchNeuron, and every way in which a machine departs from it. Imports no torch.

The matrix is data (``support_matrix.toml``), dated, each row with its source. The comparison is a pure function of an identity
and that matrix. Three grades: what no source allows is ``unsupported``; what differs from the documented combination without
being ruled out ``differs``; what could not be read here is ``not known``, and counts as neither.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from datetime import date
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version

from ..evidence.files import Frozen
from ..evidence.identity import Identity, RouteName

Grade = Literal["unsupported", "differs", "not known"]


class Source(Frozen):
    """A public page, and when it was last changed."""

    id: str
    title: str
    url: str
    date: date


class Hardware(Frozen):
    instances: list[str]
    source: str


class Platform(Frozen):
    system: str
    architecture: str
    source: str


class Package(Frozen):
    """One package family: its own version's first four numbers, its PyTorch, its Pythons."""

    family: str
    torch: str
    python: list[str]
    source: str


class Route(Frozen):
    """One way of installing: the systems where it is documented to work, and, for an image, its PyTorch and its folder."""

    name: RouteName
    text: str
    systems: list[str]
    source: str
    torch: str = ""
    prefix: str = ""


class Component(Frozen):
    """A version that shipped with the release. ``fact`` is the name in an identity."""

    fact: str
    name: str
    version: str
    source: str


class Disagreement(Frozen):
    """Where AWS's own pages say different things."""

    topic: str
    text: str
    sources: list[str]


class Matrix(Frozen):
    """The whole file."""

    release: str
    dated: date
    read: date
    source: list[Source]
    hardware: Hardware
    platform: Platform
    package: list[Package]
    route: list[Route]
    component: list[Component]
    disagreement: list[Disagreement]


@cache
def matrix() -> Matrix:
    """The support matrix that comes with this package."""
    return Matrix.model_validate(tomllib.loads(Path(__file__).with_name("support_matrix.toml").read_text()))


class Deviation(Frozen):
    """One thing that is not as documented: what is here, what is documented, and the id of the source."""

    what: str
    here: str
    documented: str
    grade: Grade
    source: str


class RouteReport(Frozen):
    """How the backend came onto this machine, and whether the documentation has that way for this system, Python and
    PyTorch. ``documented`` is None where that cannot be decided; ``wheel`` says whether a release wheel fits this machine.
    """

    in_use: str
    documented: bool | None
    reason: str
    wheel: bool | None
    wheel_reason: str


def deviations(identity: Identity, of: Matrix) -> list[Deviation]:
    """Every way in which the machine and process of `identity` depart from `of`, in the order of the matrix."""
    found = [
        _instance(identity, of),
        _exact("system", identity.value("kernel").split(" ")[0], of.platform.system, of.platform.source),
        _exact("architecture", identity.value("architecture"), of.platform.architecture, of.platform.source),
        _os(identity, of),
        _torch(identity, of),
        _python(identity, of),
        _package(identity, of),
        *_components(identity, of),
    ]
    return [deviation for deviation in found if deviation is not None]


def _instance(identity: Identity, of: Matrix) -> Deviation | None:
    here, documented = identity.value("instance type"), " or ".join(of.hardware.instances)
    if here.split(".")[0].startswith(tuple(of.hardware.instances)):
        return None
    grade: Grade = "unsupported" if here else "not known"
    return Deviation(
        what="instance type",
        here=identity.said("instance type"),
        documented=documented,
        grade=grade,
        source=of.hardware.source,
    )


def _exact(what: str, here: str, documented: str, source: str) -> Deviation | None:
    if here == documented:
        return None
    return Deviation(what=what, here=here, documented=documented, grade="unsupported", source=source)


def _os(identity: Identity, of: Matrix) -> Deviation | None:
    here = identity.value("operating system")
    documented = list(dict.fromkeys(name for route in of.route for name in route.systems))
    if _among(here, documented):
        return None
    return Deviation(
        what="operating system",
        here=identity.said("operating system"),
        documented=", ".join(sorted(documented)),
        grade="unsupported" if here else "not known",
        source="release",
    )


def _among(system: str, documented: Iterable[str]) -> bool:
    """Whether a system as it names itself (``Ubuntu 26.04.1 LTS``) is one of `documented` (``Ubuntu 26.04``)."""
    return any(re.match(rf"{re.escape(name)}(?![0-9])", system) for name in documented)


def _torch(identity: Identity, of: Matrix) -> Deviation | None:
    here = identity.value("torch")
    documented = [package.torch for package in of.package]
    if here and release(here) in documented:
        return None
    minors = {_minor(version) for version in documented}
    grade: Grade = "not known" if not here else "differs" if _minor(here) in minors else "unsupported"
    return Deviation(
        what="PyTorch",
        here=identity.said("torch"),
        documented=" or ".join(documented),
        grade=grade,
        source=of.package[0].source,
    )


def _python(identity: Identity, of: Matrix) -> Deviation | None:
    here = identity.value("Python")
    documented = list(dict.fromkeys(version for package in of.package for version in package.python))
    if _minor(here) in documented and "cpython" in here:
        return None
    return Deviation(
        what="Python",
        here=here,
        documented=", ".join(documented) + " (CPython)",
        grade="unsupported",
        source=of.package[0].source,
    )


def _package(identity: Identity, of: Matrix) -> Deviation | None:
    """Whether the backend's own version belongs to the PyTorch that is installed."""
    name, _, version = identity.value("backend package").partition(" ")
    here = identity.value("torch")
    fitting = [package.family for package in of.package if _minor(package.torch) == _minor(here)]
    documented = f"torch-neuronx {' or '.join(f'{family}.*' for family in fitting) or 'of another PyTorch'}"
    if name == "torch-neuronx" and any(_within(version, family) for family in fitting):
        return None
    differs: Grade = "unsupported" if name == "torch-neuronx" else "differs"
    return Deviation(
        what="backend package",
        here=identity.said("backend package"),
        documented=documented,
        grade=differs if name else "not known",
        source=of.package[0].source,
    )


def _components(identity: Identity, of: Matrix) -> list[Deviation]:
    found = []
    for component in of.component:
        here = identity.value(component.fact)
        if component.version in here:
            continue
        found.append(
            Deviation(
                what=component.fact,
                here=identity.said(component.fact),
                documented=f"{component.name} {component.version}",
                grade="differs" if here else "not known",
                source=component.source,
            )
        )
    return found


def release(version: str) -> str:
    """``2.13.0+cpu`` to ``2.13.0``; what is no version is returned as it is."""
    try:
        return Version(version).base_version
    except InvalidVersion:
        return version


def _minor(version: str) -> str:
    """The first two numbers of a version, ``3.12.4 (cpython)`` to ``3.12``."""
    return ".".join(version.split(" ")[0].split("+")[0].split(".")[:2])


def _within(version: str, family: str) -> bool:
    return version == family or version.startswith(family + ".")


def route(identity: Identity, of: Matrix) -> RouteReport:
    """How the backend was installed, whether that is documented for this machine, and whether a wheel would fit."""
    fits, why = _wheel_fits(identity, of)
    installation = identity.installation
    if installation is None:
        rehearsal = identity.family.word == "rehearsal"
        return RouteReport(
            in_use=f"this package's own device ({identity.said('backend package')})" if rehearsal else "none",
            documented=False,
            reason="plain Python for every system, and no way to install TorchNeuron"
            if rehearsal
            else "no distribution torch-neuronx answers for the device",
            wheel=fits,
            wheel_reason=why,
        )
    chosen = next(r for r in of.route if r.name == installation.route)
    system = identity.value("operating system")
    wrong = []
    if system and not _among(system, chosen.systems):
        wrong.append(f"it is documented for {', '.join(chosen.systems)}, and this is {system}")
    if chosen.torch and release(identity.value("torch")) != chosen.torch:
        wrong.append(f"it comes with PyTorch {chosen.torch}, and this is {identity.said('torch')}")
    if installation.tags and not installation.tags_fit:
        wrong.append(f"its wheel is for {', '.join(installation.tags)}, and this is Python {identity.value('Python')}")
    documented: bool | None = False if wrong else True if system else None
    reason = "; ".join(wrong) or (f"as documented [{chosen.source}]" if system else "the operating system is not known")
    return RouteReport(
        in_use=f"{chosen.text} ({installation.how})", documented=documented, reason=reason, wheel=fits, wheel_reason=why
    )


def _wheel_fits(identity: Identity, of: Matrix) -> tuple[bool | None, str]:
    """Whether AWS documents a wheel for this system, processor, Python and PyTorch, and why not."""
    wheel = next(r for r in of.route if r.name == "wheel")
    system = identity.value("operating system")
    if not system:
        return None, "the operating system is not known"
    wrong = []
    if not _among(system, wheel.systems):
        wrong.append(f"wheels are for {', '.join(wheel.systems)}, and this is {system}")
    if identity.value("architecture") != of.platform.architecture:
        wrong.append(f"wheels are for {of.platform.architecture}, and this is {identity.value('architecture')}")
    fitting = [p for p in of.package if p.torch == release(identity.value("torch"))]
    if not fitting:
        wrong.append(f"no package family is for PyTorch {identity.said('torch')}")
    elif _minor(identity.value("Python")) not in fitting[0].python:
        wrong.append(f"torch-neuronx {fitting[0].family}.* has no wheel for Python {identity.value('Python')}")
    return not wrong, "; ".join(wrong) or f"torch-neuronx {fitting[0].family}.* [{wheel.source}]"
