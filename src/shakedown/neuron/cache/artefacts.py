"""Executables in ``torch.compiler.save_cache_artifacts()`` and ``load_cache_artifacts()``, under TorchNeuron's name for them.

An artefact is the file of an entry as it lies on disk, so that one machine's work starts another of the same kind warm. Nothing
is unpickled here. (The artefacts of Dynamo and AOTAutograd in the same bytes are pickles: PyTorch unpickles them.)
"""

from __future__ import annotations

from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager

from .. import config
from . import current
from .entry import Unusable, header_of, payload_of
from .key import Key

_TYPE = "neuron_neff"
_collected: set[str] = set()


@CacheArtifactFactory.register
class Executable(CacheArtifact):
    """One entry of the executable cache; ``key`` is its digest."""

    @staticmethod
    def type() -> str:
        return _TYPE

    def populate_cache(self) -> None:
        """Put the entry into this process's cache, if it is what it claims to be."""
        store = current()
        if store is None:
            return
        try:
            header, start = header_of(self.content, self.key)
            payload = payload_of(self.content, header, start)
        except Unusable as error:
            store.refuse(self.key, error)
            return
        if store.get(self.key) is None:
            key = Key(header.parts)
            store.put(key, payload, kind=header.kind, name=header.name, seconds=header.seconds, note=header.note)


def collect() -> None:
    """Record the executables that this process has compiled or loaded since it was last asked."""
    store = current()
    for digest in () if store is None else sorted(store.used - _collected):
        assert store is not None
        data = store.file_of(digest)
        if data is not None:
            CacheArtifactManager.record_artifact(_TYPE, digest, data)
            _collected.add(digest)


def prepare() -> None:
    """Let PyTorch know our artefacts before it reads any; this module's import is most of it."""
    if config.PRECOMPILE():
        from ..modes import compile  # noqa: F401  # where Dynamo's artefacts go
