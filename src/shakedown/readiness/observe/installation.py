"""How the distribution behind the device was installed, and whether what it requires is there. Reads metadata only."""

from __future__ import annotations

import json
import platform
import re
import sys
from importlib import metadata

from packaging import tags
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from ..evidence.identity import Installation
from .family import DISTRIBUTION

IMAGE_PREFIX = "/opt/aws_neuronx_venv"  # virtual environments of AWS's machine images begin so


def of_vendor(prefix: str = sys.prefix) -> Installation | None:
    """How ``torch-neuronx`` was installed; None where it is not. `prefix` is the folder of the Python environment."""
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None
    wheel = tuple(re.findall(r"^Tag:\s*(\S+)", found.read_text("WHEEL") or "", re.MULTILINE))
    supported = {str(tag) for tag in tags.sys_tags()}
    fit = not wheel or bool(supported & {str(tag) for text in wheel for tag in tags.parse_tag(text)})
    if prefix.startswith(IMAGE_PREFIX):
        return Installation(
            route="image", how=f"the environment {prefix} comes with an image", tags=wheel, tags_fit=fit
        )
    origin = _origin(found)
    if origin:
        return Installation(route="source", how=origin, tags=wheel, tags_fit=fit)
    installer = (found.read_text("INSTALLER") or "an unknown installer").strip()
    return Installation(route="wheel", how=f"installed from an index by {installer}", tags=wheel, tags_fit=fit)


def _origin(found: metadata.Distribution) -> str:
    """Where pip took it from when that was no index (PEP 610); a wheel file by its address is not a build."""
    try:
        direct = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        return ""
    url = str(direct.get("url", ""))
    return f"installed from {url}" if url and not url.endswith(".whl") else ""


def unmet(distribution: str) -> list[str]:
    """Requirements of `distribution` that the installed versions do not meet, in words; empty where it is not installed."""
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return []
    wrong = []
    wanted = found.metadata.json.get("requires_python")
    try:
        if wanted and platform.python_version() not in SpecifierSet(str(wanted)):
            wrong.append(f"{distribution} needs Python {wanted}, and this is {platform.python_version()}")
    except InvalidSpecifier:
        wrong.append(f"{distribution} needs Python {wanted!r}, which cannot be read")
    for text in found.requires or []:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            wrong.append(f"{distribution} needs {text!r}, which cannot be read")
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{distribution} needs {requirement.name}, which is not installed")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{distribution} needs {requirement.name}{requirement.specifier}, and {version} is installed")
    return wrong
