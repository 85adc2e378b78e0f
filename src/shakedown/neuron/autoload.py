"""The entry point that ``import torch`` calls: takes the device name, installs the door, imports nothing heavy.

JAX, the lowerings and the registration of operators wait in :mod:`.dispatch` for the first use of the device.
"""

from __future__ import annotations

from . import config
from .errors import DeviceConflict

DEVICE_NAME = "neuron"
_loaded = False


def _vendor_package_installed() -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("torch-neuronx")
    except PackageNotFoundError:
        return False
    return True


def autoload() -> None:
    """Register the ``neuron`` device with PyTorch, once.

    Does nothing when ``SHAKEDOWN_DEVICE=off``, or when AWS's ``torch-neuronx`` is installed and
    ``SHAKEDOWN_DEVICE=rehearsal`` is not set.

    Raises:
        DeviceConflict: the PrivateUse1 device type already has another name or a registered module.
    """
    global _loaded
    choice = config.DEVICE()
    if _loaded or choice == "off" or (choice == "auto" and _vendor_package_installed()):
        return
    import torch

    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone" or hasattr(torch, DEVICE_NAME):
        raise DeviceConflict(
            f"shakedown cannot provide the {DEVICE_NAME!r} device: PyTorch's PrivateUse1 device type is already registered as "
            f"{taken!r} by another package. Set SHAKEDOWN_DEVICE=off to leave it alone, or uninstall the other package."
        )
    from . import device

    device.register()
    _loaded = True
    if choice == "rehearsal" and _vendor_package_installed():
        import sys

        from .torchneuron.standing import RehearsalFinder

        sys.meta_path.insert(0, RehearsalFinder())  # so that `import torch_neuronx` is the device's as well
    root = config.EXEC()
    if root is not None:
        from ..exec import inside

        inside.begin(root)
