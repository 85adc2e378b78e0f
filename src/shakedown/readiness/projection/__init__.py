"""Published figures of instances, for projections: :mod:`.instances` reads ``shakedown/instances.toml`` and a user's own file."""

from .instances import Chip, Figure, Instance, Instances, load

__all__ = ["Chip", "Figure", "Instance", "Instances", "load"]
