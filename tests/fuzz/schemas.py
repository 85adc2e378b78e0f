"""Random calls of ATen overloads, made from their schemas."""

from __future__ import annotations

import re
from functools import lru_cache
from random import Random
from typing import Any

import torch

from .tensors import filled, laid_out, overlapping, some_dtype, some_size

# What reads raw addresses, files or other devices; and what takes the process down on the CPU, wrong arguments given.
_SKIPPED = re.compile(
    r"cudnn|miopen|mkldnn|mps|cuda|hip|xnnpack|qnnpack|vulkan|metal|quantize|fake_quant|qscheme|sparse|coo_|_csr|nested"
    r"|jagged|_from_file|from_file|data_ptr|storage|pin_memory|record_stream|_test|debug|_dim_arange|_nnpack|_version"
    r"|fbgemm|_mixed_dtypes|_weight_int|int4|int8pack|_scaled|_grouped|_cslt|_wrapped|_dispatch|_to_cpu|names|rename"
    r"|_fw_primal|_make_dual|_unpack_dual|_lazy|_propagate_xla|_sobol|requires_grad|retain_grad|set_data|backward$"
    r"|_backward\.default$|is_pinned|_share_memory|_assert|_print|_local_scalar|item|_resize_output|resize|set_"
    r"|_efficient_attention|_flash_attention|_cufft|_fused_s|_fused_a|_fused_rms|_thnn|_segment_reduce|_foreach_.*tensor"
    r"|_embedding_bag|embedding_dense_backward|_pack_padded|_pad_packed|_ctc_loss|ctc_loss|lstm|gru|rnn|_linalg_check"
    r"|_chunk_cat|_spdiags|_validate|_convert_weight|_mkl|max_pool.d_with_indices_backward|unpool.*backward"
    r"|fractional_max_pool|_histogramdd|histogramdd|_batch_norm_with_update|batch_norm_(?!native)|native_batch_norm"
    r"|_compute_linear|_index_put_impl|_transform_bias|_native_multi|_transformer_encoder|_triton|_addmm_activation"
    r"|_use_cudnn|_unsafe_masked|_functional_sym|sym_|_reshape_copy|_remove_batch|_add_batch|_copy_from|copy_from"
    r"|_dirichlet_grad|_has_|is_(?!in|nan|inf|posinf|neginf|close|finite|real|signed)|_nnz|indices$|values$|crow|ccol"
)
_INDICES = re.compile(
    r"^(ind(ex|ices)|target|sorter|offsets|src_index|tensor_indices_or_sections|lengths|batch1_index)$"
)
_STRINGS = {
    "reduce": ("sum", "prod", "mean", "amax", "amin", "add", "multiply"),
    "rounding_mode": ("floor", "trunc", "nearest"),
    "mode": ("constant", "reflect", "replicate", "circular", "reduced", "complete", "max", "sum"),
    "approximate": ("none", "tanh"),
    "side": ("left", "right"),
    "ord": ("fro", "nuc"),
    "UPLO": ("L", "U"),
    "driver": ("gels", "gelsy"),
    "indexing": ("ij", "xy"),
    "padding_mode": ("zeros", "border"),
}
NUMBERS = (0, 1, -1, 2, 3, 0.5, -0.5, 2.0, 1e-3, True, 300, -7.25, 1e6, float("nan"), float("inf"), -float("inf"))


@lru_cache(maxsize=1)
def overloads() -> tuple[torch._ops.OpOverload, ...]:
    """Every ATen overload that can be called with generated arguments, sorted by name."""
    found = []
    known = {n[len("aten::") :].split(".")[0] for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")}
    for name in sorted(known):
        packet = getattr(torch.ops.aten, name, None)
        if packet is None or _SKIPPED.search(name):
            continue
        for overload in packet.overloads():
            op = getattr(packet, overload)
            kinds = " ".join(str(a.type) for a in op._schema.arguments)
            if re.search(r"Storage|Stream|Dimname|Dict|Any|QScheme|Future|t\b.*\[t\]|SymBool", kinds):
                continue
            if not op._schema.returns or "Tensor" not in " ".join(str(r.type) for r in op._schema.returns):
                continue
            found.append(op)
    return tuple(sorted(found, key=str))


class _Maker:
    """Arguments of one call: they share a size and a dtype more often than not."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.size = some_size(rng)
        self.dtype = some_dtype(rng)
        self.tensors: list[torch.Tensor] = []

    def tensor(self, name: str) -> torch.Tensor:
        rng, size = self.rng, list(self.size)
        if self.tensors and rng.random() < 0.06:
            return rng.choice(self.tensors)
        if self.tensors and rng.random() < 0.05:
            return overlapping(rng, rng.choice(self.tensors))
        shape = rng.random()
        if shape < 0.12:
            size = [1 if rng.random() < 0.4 else n for n in size][rng.randrange(len(size) + 1) :]
        elif shape < 0.18:
            size = size[::-1]
        elif shape < 0.26:
            size = some_size(rng)
        elif shape < 0.30:
            size = []
        elif shape < 0.33 and size:
            size = [*size[:-1], rng.randrange(6)]
        dtype = self.dtype if rng.random() < 0.85 else some_dtype(rng)
        high = None
        if _INDICES.match(name):
            dtype = rng.choices((torch.int64, torch.int32, dtype, torch.bool), (75, 15, 5, 5))[0]
            high = max([n for n in self.size if n] or [1])
            high = high if rng.random() < 0.5 else min([n for n in self.size if n] or [1])
            if rng.random() < 0.4:
                size = [rng.randrange(5)]
        elif name in ("mask", "condition"):
            dtype = torch.bool if rng.random() < 0.9 else dtype
        if name == "out" or (name.startswith("out") and name[3:].isdigit()):
            made = torch.empty(0, dtype=dtype) if rng.random() < 0.4 else filled(rng, size, dtype)
        else:
            made = filled(rng, size, dtype, high)
        made = laid_out(rng, made)
        self.tensors.append(made)
        return made

    def integer(self, name: str) -> int:
        rng = self.rng
        if rng.random() < 0.005:
            return rng.choice((2**40, -(2**40), 2**31, -(2**63)))
        if name.startswith("dim") or name in ("axis", "start_dim", "end_dim"):
            rank = len(self.size)
            return (
                rng.randrange(-rank - 1, rank + 1) if rng.random() < 0.1 else rng.randrange(-max(rank, 1), max(rank, 1))
            )
        return rng.choice((0, 1, 1, 2, 2, 3, 4, 5, -1))

    def number(self, kind: str) -> Any:
        value = self.rng.choice(NUMBERS)
        return float(value) if kind == "float" else value

    def one(self, name: str, kind: str) -> Any:
        """A value for an argument of type `kind`, spelled as in schemas read by Python.

        Raises:
            NotImplementedError: no such value can be made.
        """
        rng = self.rng
        if kind.startswith("Optional["):
            return None if rng.random() < 0.35 else self.one(name, kind[len("Optional[") : -1])
        if kind.startswith("List["):
            inner = kind[len("List[") : -1]
            if inner == "int":
                count = rng.choice((len(self.size), 1, 2, 3, 0)) if name != "dim" else rng.randrange(len(self.size) + 1)
                if name == "size" and rng.random() < 0.5:
                    return list(self.size)
                return [self.integer(name) for _ in range(count)]
            count = rng.choice((1, 2, 2, 3, 0))
            return [self.one(name, inner) for _ in range(count)]
        if kind == "Tensor":
            return self.tensor(name)
        if kind == "int":
            return self.integer(name)
        if kind in ("number", "float", "complex"):
            return self.number(kind)
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "str":
            if name not in _STRINGS:
                raise NotImplementedError(name)
            return rng.choice(_STRINGS[name])
        raise NotImplementedError(kind)

    def argument(self, argument: Any) -> Any:
        kind, name = str(argument.type), argument.name
        if name in ("layout", "device", "pin_memory", "generator"):
            return None
        if name == "dtype" and "int" in kind:
            return None if self.rng.random() < 0.5 else some_dtype(self.rng)
        if name == "memory_format":
            return None if self.rng.random() < 0.7 else torch.preserve_format
        if name == "non_blocking":
            return False
        if argument.has_default_value() and self.rng.random() < 0.5:
            return argument.default_value
        return self.one(name, kind)


def call(rng: Random) -> tuple[str, Any, list[Any], dict[str, Any]]:
    """(name, function, args, kwargs) of one random call. Tensors are on the CPU; ``device`` is left to the caller."""
    while True:
        op = rng.choice(overloads())
        maker = _Maker(rng)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        try:
            for argument in op._schema.arguments:
                value = maker.argument(argument)
                if argument.kwarg_only:
                    kwargs[argument.name] = value
                else:
                    args.append(value)
        except NotImplementedError:
            continue
        kwargs = {n: v for n, v in kwargs.items() if v is not None or n == "device"}
        return str(op), op, args, kwargs
