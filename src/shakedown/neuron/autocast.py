"""``torch.autocast("neuron")``: which operators compute in the lower precision and which in float32, as CUDA's autocast does.

The lists are PyTorch's own (ATen/autocast_mode.h, the ``AT_FORALL_...`` macros that every device shares), which only C++ can
read; whole recurrent layers join them, as cuDNN's do on CUDA. PyTorch calls these kernels while autocast is on and passes
them by otherwise, so that it costs nothing when it is off. A weight is cast once in an outermost region (:class:`_Casts`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch

from . import torch_gaps_random
from .autoload import DEVICE_NAME
from .pending import Pending

OpOverload: TypeAlias = torch._ops.OpOverload


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LOWER_PRECISION = _names("""
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
    chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell
    rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention
    lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input rnn_relu.data
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


class _Casts:
    """Weights in the lower precision, kept until the outermost region of autocast ends: what CUDA's cache of casts holds.

    As there, a weight is a float32 leaf that requires a gradient, and ``cache_enabled=False`` passes the cache by. A cast is
    taken again while the weight's value is the one that was cast, however it may have been written since, and only where
    gradients are recorded as they were when it was made: CUDA's asks for neither. Nothing is kept while a transform of
    ``torch.func`` or a mode that watches operators is active, since both must see each cast.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], tuple[torch.Tensor, Callable[[], Any], torch.Tensor]] = {}
        self.clear = self._kept.clear

    def of(self, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """`weight`, which requires a gradient, in `dtype`."""
        if (
            not torch.is_autocast_cache_enabled()
            or weight.dtype is not torch.float32
            or dtype is not torch.get_autocast_dtype(DEVICE_NAME)
            or not weight.is_leaf
            or weight._is_view()
            or torch._C._len_torch_dispatch_stack()
            or torch._C._functorch.peek_interpreter_stack() is not None
        ):
            return weight.to(dtype)
        buffer = getattr(weight.untyped_storage(), "buffer", None)  # none has a fake tensor that a trace goes by
        key = id(weight), dtype, torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        found = self._kept.get(key)
        if found is not None and found[1]() is buffer:
            return found[2]
        cast = weight.to(dtype)
        if buffer is not None:
            # A strong reference would keep the old value of a weight that is written. What is only recorded has none.
            value = (lambda: buffer) if type(buffer) is Pending else weakref.ref(buffer)
            self._kept[key] = (weight, value, cast)  # the weight too, so that its id stays its own
        return cast


_casts = _Casts()


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    if _eligible(tree):
        if tree.dtype is dtype:
            return tree
        return _casts.of(tree, dtype) if tree.requires_grad else tree.to(dtype)
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
    torch_gaps_random.clear_casts_with(_casts.clear)
