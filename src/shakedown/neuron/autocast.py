"""``torch.autocast("neuron")``: which operators compute in the lower precision and which in float32, as CUDA's autocast does.

The lists are PyTorch's own (ATen/autocast_mode.h, the ``AT_FORALL_...`` macros that every device shares), which only C++ can
read. PyTorch calls these kernels while autocast is on and passes them by otherwise, so that it costs nothing when it is off.
Unlike on CUDA, a weight is cast anew by each operator that reads it; a captured graph casts it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch

from .autoload import DEVICE_NAME

OpOverload: TypeAlias = torch._ops.OpOverload


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LOWER_PRECISION = _names("""
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
    chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell
    rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention
""")
FLOAT32 = _names("""
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
    pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
    cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
    multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
    _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
    upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
""")
FLOAT32_RESULT = _names("""
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
""")
WIDEST = _names("""
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
""")
_NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}

_BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)
_below = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _overload(name: str) -> OpOverload | None:
    base, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, base, None), which or "default", None)


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == DEVICE_NAME
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _tensors(tree: Any) -> Iterable[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _tensors(item)


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    if _eligible(tree):
        return tree if tree.dtype is dtype else tree.to(dtype)
    if isinstance(tree, (list, tuple)):
        return type(tree)(_cast(item, dtype) for item in tree)
    return tree


def _casting(op: OpOverload, dtype_for: Callable[[tuple[Any, ...], dict[str, Any]], torch.dtype]) -> Callable[..., Any]:
    """A kernel that calls `op` with its floating tensors in the dtype that `dtype_for` gives for its arguments."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = dtype_for(args, kwargs)
        with torch._C._ExcludeDispatchKeyGuard(_below):
            return op(*_cast(args, dtype), **{n: _cast(v, dtype) for n, v in kwargs.items()})

    return kernel


def _lower(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    return torch.get_autocast_dtype(DEVICE_NAME)


def _float32(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    return torch.float32


def _widest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    lower = torch.get_autocast_dtype(DEVICE_NAME)
    given = {t.dtype for t in _tensors([args, list(kwargs.values())]) if _eligible(t)}
    return lower if given <= {lower} else torch.float32


def _with_float32_result(op: OpOverload, target: OpOverload) -> Callable[..., Any]:
    """A kernel that calls `target` with ``dtype=torch.float32`` where the caller of `op` gives none."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_below):
            first = args[0] if args else next(iter(kwargs.values()), None)
            if not _eligible(first):
                return op(*args, **kwargs)
            given = {**dict(zip((a.name for a in op._schema.arguments), args)), **kwargs}
            if given.get("dtype") is None:
                given["dtype"] = torch.float32
            return target(**given)

    return kernel


def _banned(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(_BANNED)


def register(library: torch.library.Library) -> None:
    """Give the operators of the lists their kernels for autocast. `library` implements ``aten`` and is kept by the caller."""
    kernels: dict[OpOverload, Callable[..., Any]] = {}
    for names, dtype_for in ((LOWER_PRECISION, _lower), (FLOAT32, _float32), (WIDEST, _widest)):
        for name in names:
            if (op := _overload(name)) is not None:
                kernels[op] = _casting(op, dtype_for)
    for name in FLOAT32_RESULT:
        if (op := _overload(name)) is not None:
            kernels[op] = _with_float32_result(op, op)
    for name, other in _NORMS.items():
        op, target = _overload(name), _overload(other)
        if op is not None and target is not None:
            kernels[op] = _with_float32_result(op, target)
    kernels[torch.ops.aten.binary_cross_entropy.default] = _banned
    for op, kernel in kernels.items():
        library.impl(op, kernel, "AutocastPrivateUse1")
