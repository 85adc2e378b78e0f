"""Archives whose bytes depend on names and contents alone: no times, owners, modes or order of the file system."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Mapping

FORMS = (".zip", ".tar.gz", ".tgz")
_LEVEL = 9
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a ZIP can say
_MODE = 0o644


def pack(files: Mapping[str, bytes], folder: str, name: str) -> bytes:
    """All `files` below `folder`, as the kind of archive that `name` ends in. Raises ValueError for another ending."""
    ordered = {f"{folder}/{path}": files[path] for path in sorted(files)}
    if name.endswith(".zip"):
        return _zip(ordered)
    if name.endswith((".tar.gz", ".tgz")):
        return _tar(ordered)
    raise ValueError(f"{name!r} does not end in {', '.join(FORMS)}")


def _zip(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for path, content in files.items():
            info = zipfile.ZipInfo(path, _EPOCH)
            info.create_system, info.external_attr = 3, _MODE << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content, compresslevel=_LEVEL)
    return made.getvalue()


def _tar(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=made, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), _MODE
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()
