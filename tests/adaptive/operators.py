"""Families of operators for random programs: each writes one step, or a few, on tensors that the pool has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from .programs import Nothing, Writer

Tensor = torch.Tensor
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, *HALVES, torch.float64)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.bool, torch.complex64)


def _floating(t: Tensor) -> bool:
    return t.is_floating_point()


def _whole(t: Tensor) -> bool:
    return t.dtype in (torch.int64, torch.int32)


def _writable(t: Tensor) -> bool:
    return not (t.is_leaf and t.requires_grad) and all(s for n, s in zip(t.shape, t.stride()) if n > 1)


def _wide(t: Tensor) -> bool:
    """Floats that fused arithmetic is most likely to round otherwise."""
    return t.dtype in FLOATS and t.dim() > 0


def _fits(a: Tensor, b: Tensor) -> bool:
    pairs = zip(reversed(a.shape), reversed(b.shape))
    return all(m == n or m == 1 or n == 1 for m, n in pairs)


def _covers(a: Tensor, b: Tensor) -> bool:
    """Whether `b` can be written into `a`."""
    return _fits(a, b) and a.dim() >= b.dim() and torch.broadcast_shapes(a.shape, b.shape) == a.shape


def _dim(w: Writer, t: Tensor) -> int:
    if t.dim() == 0:
        raise Nothing
    return w.random.randrange(-t.dim(), t.dim())


def unary(w: Writer) -> None:
    safe = (
        "tanh",
        "sigmoid",
        "sin",
        "cos",
        "erf",
        "abs",
        "neg",
        "relu",
        "square",
        "sign",
        "exp",
        "expm1",
        "atan",
        "gelu",
    )
    risky = ("log", "sqrt", "rsqrt", "reciprocal", "log1p", "asin", "digamma", "lgamma", "ceil", "frac", "trunc")
    name = w.random.choice(safe if w.chance(0.8) else risky)
    a = w.pick(_floating if w.chance(0.9) else lambda t: t.dtype is not torch.bool)
    op: Any = F.gelu if name == "gelu" else getattr(torch, name)
    w.emit(name, op, a)


def binary(w: Writer) -> None:
    a = w.pick(_wide if w.chance(0.7) else lambda t: True)
    b = w.pick(lambda t: _fits(t, w.of(a)))
    name = w.random.choice(
        ("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "hypot", "fmod", "remainder", "pow")
    )
    if name in ("add", "sub") and w.chance(0.5):
        alpha = w.random.choice((2, 3, -1))
        w.emit(f"{name}, alpha={alpha}", lambda x, y: getattr(torch, name)(x, y, alpha=alpha), a, b)
        return
    w.emit(name, getattr(torch, name), a, b)


def with_number(w: Writer) -> None:
    number = w.random.choice((2, 3, -1, 0.5, 1.7, -0.3, True))
    name = w.random.choice(("add", "mul", "sub", "div", "pow"))
    if name == "pow":
        number = 2
    w.emit(f"{name} {number}", lambda x: getattr(torch, name)(x, number), w.pick())


def contraction(w: Writer) -> None:
    """A product followed by a sum: what a compiler would like to round only once."""
    a = w.pick(_wide)
    b, c = (w.pick(lambda t: _floating(t) and _fits(t, w.of(a))) for _ in range(2))
    if w.chance(0.3):
        w.emit("addcmul", lambda x, y, z: torch.addcmul(z, x, y, value=0.7), a, b, c)
        return
    w.emit("mul", torch.mul, a, b)
    product = w.count - 1
    w.emit("add", torch.add, product, c)


def compare(w: Writer) -> None:
    a = w.pick(lambda t: not t.is_complex())
    b = w.pick(lambda t: not t.is_complex() and _fits(t, w.of(a)))
    name = w.random.choice(("lt", "ge", "eq", "ne", "logical_and", "logical_xor"))
    w.emit(name, getattr(torch, name), a, b)


def whole_numbers(w: Writer) -> None:
    a = w.pick(_whole)
    b = w.pick(lambda t: _whole(t) and _fits(t, w.of(a)))
    name = w.random.choice(("bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide", "remainder", "mul"))
    w.emit(name, getattr(torch, name), a, b)


def convert(w: Writer) -> None:
    dtype = w.random.choice(DTYPES)
    w.emit(f"to {dtype}", lambda x: x.to(dtype), w.pick(lambda t: dtype.is_complex or not t.is_complex()))


def reduce(w: Writer) -> None:
    a = w.pick(lambda t: not t.is_complex() and t.dim() > 0)
    t = w.of(a)
    floats = ("mean", "std", "var", "logsumexp", "norm") if _floating(t) else ()
    name = w.random.choice(("sum", "prod", "amax", "amin", "argmax", "cumsum", "any", *floats))
    dim, keep = _dim(w, t), w.chance(0.5)
    op = getattr(torch, name)
    if name == "cumsum":
        w.emit(f"cumsum dim={dim}", lambda x: op(x, dim), a)
    elif name == "norm":
        w.emit(f"norm dim={dim}", lambda x: torch.linalg.vector_norm(x, 2, dim, keep), a)
    elif name in ("sum", "mean") and w.chance(0.3):
        w.emit(name, lambda x: op(x), a)
    else:
        w.emit(f"{name} dim={dim} keepdim={keep}", lambda x: op(x, dim=dim, keepdim=keep), a)


def matrix(w: Writer) -> None:
    a = w.pick(lambda t: _floating(t) and t.dim() >= 2 and t.dim() <= 3)
    t = w.of(a)
    b = w.pick(lambda u: u.dtype is t.dtype and u.dim() == 2 and t.shape[-1] in u.shape)
    if w.of(b).shape[0] == t.shape[-1] and w.chance(0.7):
        w.emit("matmul", torch.matmul, a, b)
    elif w.of(b).shape[1] == t.shape[-1]:
        w.emit("linear", F.linear, a, b)
    else:
        w.emit("matmul turned", lambda x, y: y.mT @ x.mT, a, b)


def convolution(w: Writer) -> None:
    a = w.pick(lambda t: _floating(t) and t.dim() == 4 and t.dtype is not torch.float16)
    t = w.of(a)
    channels, dtype = t.shape[1], t.dtype
    out, stride, padding = w.random.choice((2, 4)), w.random.choice((1, 2)), w.random.choice((0, 1))
    w.emit(
        f"weights {out}x{channels}x3x3",
        lambda: torch.randn(out, channels, 3, 3, device="neuron").to(dtype).requires_grad_(),
    )
    w.emit(
        f"conv2d stride={stride} padding={padding}",
        lambda x, k: F.conv2d(x, k, stride=stride, padding=padding),
        a,
        w.count - 1,
    )


def pool(w: Writer) -> None:
    a = w.pick(lambda t: t.dtype in (torch.float32, torch.bfloat16) and t.dim() == 4 and min(t.shape[2:]) >= 2)
    op = w.random.choice((F.max_pool2d, F.avg_pool2d))
    w.emit(op.__name__, lambda x: op(x, 2), a)


def normalise(w: Writer) -> None:
    a = w.pick(lambda t: _floating(t) and t.dim() > 0)
    t = w.of(a)
    dim, last = _dim(w, t), t.shape[-1]
    kind = w.random.choice(("softmax", "log_softmax", "layer_norm", "rms_norm", "batch_norm", "normalize"))
    if kind in ("softmax", "log_softmax"):
        w.emit(f"{kind} dim={dim}", lambda x: getattr(F, kind)(x, dim), a)
    elif kind in ("layer_norm", "rms_norm"):
        w.emit(kind, lambda x: getattr(F, kind)(x, (last,)), a)
    elif kind == "normalize":
        w.emit(kind, lambda x: F.normalize(x, dim=dim), a)
    else:
        w.emit(
            kind, lambda x: F.batch_norm(x, None, None, training=True), w.pick(lambda t: t.dim() in (3, 4) and _wide(t))
        )


def view(w: Writer) -> None:
    a = w.pick(lambda t: t.dim() > 0)
    t = w.of(a)
    dim = _dim(w, t)
    n = t.shape[dim]
    kind = w.random.choice(
        ("slice", "select", "transpose", "expand", "as_strided", "diagonal", "unfold", "reshape", "squeeze")
    )
    if kind == "slice":
        first = w.random.randrange(n)
        step = w.random.choice((1, 1, 2))
        w.emit(f"slice dim={dim} {first}::{step}", lambda x: x.movedim(dim, 0)[first::step].movedim(0, dim), a)
    elif kind == "select":
        index = w.random.randrange(n)
        w.emit(f"select dim={dim} {index}", lambda x: x.select(dim, index), a)
    elif kind == "transpose":
        other = _dim(w, t)
        w.emit(f"transpose {dim} {other}", lambda x: x.transpose(dim, other), a)
    elif kind == "expand":
        w.emit("expand", lambda x: x.unsqueeze(0).expand(3, *x.shape), a)
    elif kind == "as_strided" and t.numel() >= 4 and t.is_contiguous():
        offset = t.storage_offset() + w.random.randrange(2)
        w.emit(f"as_strided from {offset}", lambda x: x.as_strided((2, 2), (1, 1) if n % 2 else (2, 1), offset), a)
    elif kind == "diagonal" and t.dim() > 1:
        w.emit("diagonal", lambda x: x.diagonal(0, -2, -1), a)
    elif kind == "unfold" and n >= 2:
        w.emit(f"unfold dim={dim}", lambda x: x.unfold(dim, 2, 1), a)
    elif kind == "squeeze":
        w.emit("unsqueeze", lambda x: x.unsqueeze(dim), a)
    else:
        w.emit("reshape", lambda x: x.reshape(-1), a)


def in_place(w: Writer) -> None:
    a = w.pick(lambda t: _writable(t) and not (t.requires_grad and w.chance(0.7)))
    t = w.of(a)
    kinds = ["copy_", "mul_", "add_", "fill_", "zero_", "clamp_", "masked_fill_"]
    kind = w.random.choice(kinds)
    if kind in ("copy_", "mul_", "add_"):
        b = w.pick(lambda u: _covers(t, u) and torch.can_cast(u.dtype, t.dtype))
        w.emit(kind, lambda x, y: getattr(x, kind)(y), a, b)
    elif kind == "fill_":
        w.emit(kind, lambda x: x.fill_(2), a)
    elif kind == "zero_":
        w.emit(kind, lambda x: x.zero_(), a)
    elif kind == "clamp_" and t.dtype in (*FLOATS, torch.int64):
        w.emit(kind, lambda x: x.clamp_(-1, 1), a)
    else:
        mask = w.pick(lambda u: u.dtype is torch.bool and _covers(t, u))
        w.emit("masked_fill_", lambda x, m: x.masked_fill_(m, 1), a, mask)


def through_view(w: Writer) -> None:
    """A write through a view of a view, which all aliases must see."""
    a = w.pick(lambda t: t.dim() >= 2 and _writable(t) and _floating(t) and not t.requires_grad)
    n = w.of(a).shape[0]
    first = w.random.randrange(n)
    how = w.random.choice(("rows", "columns", "diagonal"))

    def write(x: Tensor) -> None:
        part = x[first:] if how == "rows" else x.transpose(0, 1)[:1] if how == "columns" else x.diagonal(0, 0, 1)
        part.mul_(0.5).add_(1)

    w.emit(f"write {how} {first}:", write, a)


def out(w: Writer) -> None:
    a = w.pick(lambda t: _floating(t) and not t.requires_grad)
    b = w.pick(lambda t: t.dtype is w.of(a).dtype and _fits(t, w.of(a)) and not t.requires_grad)
    size = torch.broadcast_shapes(w.of(a).shape, w.of(b).shape)
    name = w.random.choice(("add", "mul", "sub"))
    op = getattr(torch, name)
    if w.chance(0.3):
        w.emit(f"{name} out=new", lambda x, y: op(x, y, out=x.new_empty(0)), a, b)
        return
    c = w.pick(lambda t: t.shape == size and t.dtype is w.of(a).dtype and not t.requires_grad and _writable(t))
    w.emit(f"{name} out=", lambda x, y, z: op(x, y, out=z), a, b, c)


def foreach(w: Writer) -> None:
    dtype = w.random.choice((torch.float32, torch.bfloat16))
    lists = [w.pick(lambda t: t.dtype is dtype and _writable(t) and not t.requires_grad) for _ in range(4)]
    lists = list(dict.fromkeys(lists))
    kind = w.random.choice(("mul_", "add", "sqrt", "addcmul", "lerp_"))
    if kind == "mul_":
        w.emit("_foreach_mul_", lambda *ts: torch._foreach_mul_(list(ts), 0.5), *lists)
    elif kind == "add":
        w.emit("_foreach_add", lambda *ts: torch._foreach_add(list(ts), list(ts), alpha=2), *lists)
    elif kind == "sqrt":
        w.emit("_foreach_abs, sqrt", lambda *ts: torch._foreach_sqrt(torch._foreach_abs(list(ts))), *lists)
    elif kind == "addcmul":
        w.emit("_foreach_addcmul", lambda *ts: torch._foreach_addcmul(list(ts), list(ts), list(ts), value=0.1), *lists)
    else:
        w.emit("_foreach_lerp_", lambda *ts: torch._foreach_lerp_(list(ts), torch._foreach_neg(list(ts)), 0.1), *lists)


def choose(w: Writer) -> None:
    mask = w.pick(lambda t: t.dtype is torch.bool)
    a = w.pick(lambda t: _fits(t, w.of(mask)))
    b = w.pick(lambda t: _fits(t, w.of(mask)) and _fits(t, w.of(a)))
    w.emit("where", torch.where, mask, a, b)


def index(w: Writer) -> None:
    a = w.pick(lambda t: t.dim() > 0 and t.dtype is not torch.bool)
    t = w.of(a)
    dim = _dim(w, t)
    n, k = t.shape[dim], w.random.randint(1, 5)
    w.emit(f"randint {n}", lambda: torch.randint(0, n, (k,), device="neuron"))
    i = w.count - 1
    kind = w.random.choice(("index_select", "index", "gather", "scatter_add", "index_put_", "scatter", "index_add"))
    if kind == "index_select":
        w.emit(kind, lambda x, j: x.index_select(dim, j), a, i)
    elif kind == "index":
        w.emit(kind, lambda x, j: x.movedim(dim, 0)[j], a, i)
    elif kind == "gather":
        w.emit(kind, lambda x, j: x.movedim(dim, -1).gather(-1, j.expand(*x.movedim(dim, -1).shape[:-1], k)), a, i)
    elif kind == "scatter_add":
        w.emit(kind, lambda x, j: x.reshape(-1).scatter_add(0, j, x.reshape(-1)[j]), a, i)
    elif kind == "scatter":
        order = torch.arange(n - 1, -1, -1)
        w.emit(kind, lambda x: x.movedim(dim, 0).scatter(0, _along(order, x.movedim(dim, 0)), x.movedim(dim, 0)), a)
    elif kind == "index_add":
        w.emit(kind, lambda x, j: x.index_add(dim, j, x.index_select(dim, j)), a, i)
    else:
        if not _writable(t) or t.requires_grad:
            raise Nothing
        w.emit("index_put_ accumulate", lambda x, j: x.index_put_((j,), x[j] * 2, accumulate=True), a, i) if dim in (
            0,
            -t.dim(),
        ) else w.emit("index_fill_", lambda x, j: x.index_fill_(dim, j, 1), a, i)


def _along(order: Tensor, like: Tensor) -> Tensor:
    shaped = order.to(like.device).view(-1, *[1] * (like.dim() - 1))
    return shaped.expand(like.shape).contiguous()


def join(w: Writer) -> None:
    a = w.pick(lambda t: t.dim() > 0)
    b = w.pick(lambda t: t.shape == w.of(a).shape)
    dim = _dim(w, w.of(a))
    if w.chance(0.5):
        w.emit(f"cat dim={dim}", lambda x, y: torch.cat([x, y, x], dim), a, b)
    elif w.of(a).dtype is w.of(b).dtype:
        w.emit(f"stack dim={dim}", lambda x, y: torch.stack([x, y], dim), a, b)
    else:
        raise Nothing


def draw(w: Writer) -> None:
    kind = w.random.choice(("dropout", "rand", "randn_like", "bernoulli", "normal_"))
    if kind == "rand":
        w.emit(kind, lambda: torch.rand(4, 6, device="neuron"))
        return
    a = w.pick(lambda t: t.dtype in (torch.float32, torch.bfloat16) and not (kind == "normal_" and t.requires_grad))
    if kind == "dropout":
        w.emit(kind, lambda x: F.dropout(x, 0.3, True), a)
    elif kind == "randn_like":
        w.emit(kind, torch.randn_like, a)
    elif kind == "bernoulli":
        w.emit(kind, lambda x: torch.bernoulli(torch.sigmoid(x.detach())), a)
    elif _writable(w.of(a)):
        w.emit(kind, lambda x: x.normal_(0, 1), a)


def leaf(w: Writer) -> None:
    a = w.pick(lambda t: _floating(t) or t.is_complex())
    w.emit("leaf", lambda x: x.detach().clone().requires_grad_(), a)


def backward(w: Writer) -> None:
    """Gradients: into leaves, or returned."""
    a = w.pick(lambda t: t.requires_grad and not t.is_leaf and not t.is_complex())
    if w.chance(0.5):
        w.emit("backward", lambda y: y.float().sum().backward(retain_graph=True), a)
        return
    leaves = [i for i in w.pool if w.of(i).is_leaf and w.of(i).requires_grad][:3]
    if not leaves:
        raise Nothing

    def grad(y: Tensor, *xs: Tensor) -> Any:
        found = torch.autograd.grad(y.float().square().mean(), xs, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for g, x in zip(found, xs)]

    w.emit("grad", grad, a, *leaves)


def read(w: Writer) -> None:
    """A value that the program asks for in the middle."""
    a = w.pick(lambda t: t.dtype is not torch.bool or t.dim() > 0)
    kind = w.random.choice(("item", "tolist", "cpu"))
    if kind == "item":
        w.emit("item", lambda x: x.detach().flatten()[0].item(), a)
    elif kind == "tolist":
        w.emit("tolist", lambda x: repr(x.detach().flatten()[:4].tolist()), a)
    else:
        w.emit("cpu", lambda x: repr(x.detach().cpu().sum().item()), a)


def mistake(w: Writer) -> None:
    """What must raise, and leave everything as it was."""
    a = w.pick(lambda t: _floating(t) and t.dim() > 0)
    n = w.of(a).shape[0]
    kind = w.random.choice(("sizes", "index", "in place", "dtype", "division"))
    if kind == "sizes":
        w.emit("add of other sizes", lambda x: x + torch.zeros(*x.shape[:-1], x.shape[-1] + 7, device="neuron"), a)
    elif kind == "index":
        w.emit("index_select beyond the end", lambda x: x.index_select(0, torch.full((2,), n, device="neuron")), a)
    elif kind == "in place":
        w.emit(
            "index_fill_ beyond", lambda x: x.detach().index_fill_(0, torch.full((1,), n + 3, device="neuron"), 0), a
        )
    elif kind == "dtype":
        w.emit("gather by floats", lambda x: x.gather(0, x), a)
    else:
        b = w.pick(_whole)
        w.emit("division by zero", lambda x: torch.floor_divide(x, torch.zeros_like(x)), b)


def data_dependent(w: Writer) -> None:
    a = w.pick(lambda t: not t.requires_grad)
    w.emit("masked_select", lambda x: torch.masked_select(x, x != 0), a)


# How often each family comes, in relation to the others.
FAMILIES: dict[Callable[[Writer], None], float] = {
    unary: 10,
    binary: 10,
    with_number: 6,
    contraction: 8,
    compare: 3,
    whole_numbers: 3,
    convert: 5,
    reduce: 7,
    matrix: 6,
    convolution: 2,
    pool: 2,
    normalise: 5,
    view: 9,
    in_place: 8,
    through_view: 4,
    out: 3,
    foreach: 3,
    choose: 4,
    index: 5,
    join: 4,
    draw: 4,
    leaf: 4,
    backward: 4,
    read: 0.8,
    mistake: 0.6,
    data_dependent: 0.3,
}
