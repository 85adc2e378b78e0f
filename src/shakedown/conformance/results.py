"""One row for each check of each sample, kept as a Parquet file; and the words that a row's status can be."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from shakedown.readiness.evidence import write_atomic

Check = Literal["forward", "gradient", "inplace", "out", "noncontiguous", "view", "error"]
Status = Literal[
    "native",  # right, every operator through a lowering of its own
    "decomposed",  # right, some operator through PyTorch's decomposition, still one program on the device
    "fallback",  # right, but some operator ran on the CPU
    "same-error",  # an error input: the device raised what the CPU raises
    "wrong",
    "wrong-gradient",
    "error-differs",
    "crashed",
    "timeout",
    "skipped",  # nothing was measured; `message` says why
]
STATUSES: tuple[Status, ...] = get_args(Status)
RIGHT: tuple[Status, ...] = ("native", "decomposed", "fallback", "same-error")
BAD: tuple[Status, ...] = ("wrong", "wrong-gradient", "error-differs", "crashed", "timeout")


@dataclass
class Row:
    """One check of one sample.

    `sample` numbers the entry's samples of that dtype, as PyTorch generates them on the CPU with every seed at 0.
    `shapes` are those of the tensors among the arguments. Errors are the largest among finite values. `fallbacks` and
    `decomposed` name the operators that did not run through a lowering of their own.
    """

    suite: str
    op: str
    dtype: str
    mode: str
    check: str
    sample: int
    status: str
    shapes: str = ""
    absolute_error: float = 0.0
    relative_error: float = 0.0
    judged_by_float64: bool = False
    message: str = ""
    fallbacks: list[str] = field(default_factory=list)
    decomposed: list[str] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as JSON lines, atomically."""
    write_atomic(path, "".join(json.dumps(asdict(r)) + "\n" for r in rows).encode())


def read_lines(path: Path) -> list[Row]:
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]


def write_parquet(path: Path, rows: list[Row]) -> None:
    """Write all rows as one columnar file, atomically; the columns are :class:`Row`'s fields."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, Any] = {"str": pa.string(), "int": pa.int32(), "float": pa.float64(), "bool": pa.bool_()}
    schema = pa.schema([(f.name, types.get(str(f.type), pa.list_(pa.string()))) for f in fields(Row)])
    columns = {f.name: [getattr(r, f.name) for r in rows] for f in fields(Row)}
    data = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=schema), data, compression="zstd")
    write_atomic(path, data.getvalue().to_pybytes())


def read_parquet(path: Path) -> list[Row]:
    import pyarrow.parquet as pq

    return [Row(**row) for row in pq.read_table(path).to_pylist()]
