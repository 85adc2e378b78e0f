"""Wrong numbers, and numbers that are right in another way."""

from __future__ import annotations

from typing import Any, Final

from ..fault import By, Recipe, fault
from ..inject import Device

_GROUP: Final = "numbers"
_BOTH = Recipe(dtypes=("float32", "bfloat16"))


@fault(By("mismatch(output)", phase="forward"), group=_GROUP, recipe=_BOTH, hidden_in=("bfloat16",))
def scaled_activation(device: Device) -> None:
    """An activation comes out 0.2 % too large."""
    device.result("gelu", lambda r: r * 1.002)


@fault(By("mismatch(output)", "row", phase="forward"), group=_GROUP, recipe=_BOTH)
def zeroed_row(device: Device) -> None:
    """One position of the last product comes out as zeros."""
    device.result("linear", lambda r: r.at[0, 3].set(0.0) if r.shape[-1] == 48 else r)


@fault(By("mismatch(output)", "rows", phase="forward"), group=_GROUP, recipe=Recipe(cases=("3x5",)))
def dropped_last_rows(device: Device) -> None:
    """A product in tiles of four rows forgets the last tile where it is not full."""

    def tiled(fn: Any, input: Any, weight: Any, bias: Any = None) -> Any:
        rows = fn(input, weight, bias)
        flat = rows.reshape(-1, rows.shape[-1])
        return flat.at[len(flat) // 4 * 4 :].set(0.0).reshape(rows.shape)

    device.lowering("linear", tiled)


@fault(By("mismatch(gradient)", "gradient/", phase="backward"), group=_GROUP, recipe=_BOTH, hidden_in=("bfloat16",))
def wrong_loss_gradient(device: Device) -> None:
    """The gradient of the loss's softmax is 0.2 % too large."""
    device.result("_log_softmax_backward_data", lambda r: r * 1.002)


@fault(By("mismatch(gradient)", "norm.weight", phase="backward"), group=_GROUP, recipe=_BOTH)
def zeroed_norm_gradient(device: Device) -> None:
    """The gradient of normalisation weights is zero."""
    device.result("native_layer_norm_backward", lambda r: (r[0], r[1] * 0, *r[2:]))


@fault(By("mismatch(gradient)", "tokens.weight", phase="backward"), group=_GROUP, recipe=_BOTH)
def repeated_tokens_lost(device: Device) -> None:
    """The gradient of an embedding keeps one of the tokens that occur several times, and does not add them."""

    def kept(fn: Any, grad: Any, indices: Any, rows: int, *rest: Any, **more: Any) -> Any:
        empty = device.numpy.zeros((rows, grad.shape[-1]), grad.dtype)
        return empty.at[indices.reshape(-1)].set(grad.reshape(-1, grad.shape[-1]))

    device.lowering("embedding_dense_backward", kept)


@fault(By("mismatch(weight)", "tokens.weight", phase="optimizer"), group=_GROUP, recipe=_BOTH, hidden_in=("bfloat16",))
def dropped_decay(device: Device) -> None:
    """AdamW forgets its weight decay."""

    def near_one(fn: Any, tensors: Any, scalar: Any) -> Any:
        decays = (abs(scalar - 1) < 5e-4) * 1.0  # 1 - lr * decay; the other factor is beta2
        return [x * decays + r * (1 - decays) for x, r in zip(tensors, fn(tensors, scalar), strict=True)]

    device.lowering("_foreach_mul.Scalar", near_one)


@fault(By("mismatch(weight)", "made 50.", phase="optimizer"), group=_GROUP, recipe=_BOTH)
def half_rate(device: Device) -> None:
    """The optimizer moves half as far as asked."""
    device.lowering(
        "_foreach_addcdiv.ScalarList",
        lambda fn, x, *rest, **more: [(a + b) / 2 for a, b in zip(x, fn(x, *rest, **more), strict=True)],
    )


@fault(By("mismatch(weight)", "made", phase="optimizer"), group=_GROUP, recipe=_BOTH)
def no_update(device: Device) -> None:
    """The optimizer does nothing but decay."""
    device.lowering("_foreach_addcdiv.ScalarList", lambda fn, x, *rest, **more: list(x))


@fault(By("mismatch(state)", "step3/state", phase="optimizer"), group=_GROUP, recipe=_BOTH)
def forgotten_momentum(device: Device) -> None:
    """The optimizer's first moment starts from zero at every step."""
    device.lowering("_foreach_lerp.Scalar", lambda fn, x, end, weight: fn([a * 0 for a in x], end, weight))


@fault(By("mismatch(weight)", phase="optimizer"), group=_GROUP, recipe=_BOTH)
def shifted_update(device: Device) -> None:
    """Every weight is moved by a thousandth too much."""
    device.result("_foreach_addcdiv.ScalarList", lambda r: [t + 1e-3 for t in r])


@fault(By("mismatch(output)", "significand", phase="forward"), group=_GROUP, recipe=_BOTH, hidden_in=("bfloat16",))
def silent_bfloat16(device: Device) -> None:
    """Linear layers silently multiply in bfloat16."""

    def narrow(fn: Any, input: Any, weight: Any, bias: Any = None) -> Any:
        product = fn(input.astype("bfloat16"), weight.astype("bfloat16"), None).astype(input.dtype)
        return product if bias is None else product + bias

    device.lowering("linear", narrow)


@fault(By("mismatch(gradient)", "significand", phase="backward"), group=_GROUP)
def narrow_sums(device: Device) -> None:
    """Gradients of weights are summed up in bfloat16."""

    def summed(fn: Any, x: Any, grad: Any, weight: Any, mask: Any) -> Any:
        first, second, third = fn(x, grad, weight, mask)
        if second is None:
            return first, second, third
        narrow = fn(x.astype("bfloat16"), grad.astype("bfloat16"), weight.astype("bfloat16"), mask)[1]
        return first, narrow.astype("bfloat16").astype(second.dtype), third

    device.lowering("linear_backward", summed)


@fault(By("mismatch(output)", "finite on one side only", phase="forward"), group=_GROUP, recipe=_BOTH)
def not_a_number(device: Device) -> None:
    """One activation is not a number."""
    device.result("gelu", lambda r: r.at[0, 2, 5].set(float("nan")))


@fault(By("mismatch(output)", phase="forward"), group=_GROUP, recipe=_BOTH)
def uncaused_attention(device: Device) -> None:
    """Attention sees the future."""

    def uncaused(fn: Any, *args: Any, **kwargs: Any) -> Any:
        given = list(args)
        if len(given) > 5:
            given[5] = False
        return fn(*given, **{n: False if n == "is_causal" else v for n, v in kwargs.items()})

    device.lowering("_scaled_dot_product_fused_attention_overrideable", uncaused)


@fault(By("mismatch(gradient)", phase="backward"), group=_GROUP)
def transposed_layout(device: Device) -> None:
    """A view whose dimensions are swapped in memory is read in the order of its memory."""

    def make(read: Any) -> Any:
        def wrong(base: Any, view: Any) -> Any:
            steps = [s for s, n in zip(view.stride, view.size, strict=True) if n > 1]
            whole = base.ndim == 1 and base.shape[0] == view.numel and not view.offset
            if whole and len(view.size) == 4 and steps != sorted(steps, reverse=True):
                return base.reshape(view.size)
            return read(base, view)

        return wrong

    device.patch("shakedown.neuron.views", "read", make)


@fault(By("mismatch(output)", phase="forward"), group=_GROUP, recipe=Recipe("plain", cases=("4x6",)))
def stale_view(device: Device) -> None:
    """What is written into a slice does not reach the tensor that it is a slice of."""

    def make(write: Any) -> Any:
        def wrong(base: Any, view: Any, value: Any) -> Any:
            partial = base.ndim == 1 and 0 < view.numel < base.shape[0] and len(view.size) > 1
            return base if partial else write(base, view, value)

        return wrong

    device.patch("shakedown.neuron.views", "write", make)


@fault(By("mismatch(output)", phase="forward"), group=_GROUP)
def ignored_epsilon(device: Device) -> None:
    """A normalisation divides without its epsilon."""
    device.lowering("native_layer_norm", lambda fn, x, shape, weight, bias, eps: fn(x, shape, weight, bias, 0.0))


@fault(
    By("mismatch(buffer)", "running_", phase="forward"),
    group=_GROUP,
    recipe=Recipe("images", dtypes=("float32", "bfloat16"), cases=("4x8",)),
)
def wrong_running_statistics(device: Device) -> None:
    """Batch normalisation forgets a tenth of what it should add to its running statistics."""

    def forgetful(fn: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any, **more: Any) -> Any:
        out = fn(x, weight, bias, mean, var, *rest, **more)
        return (*out[:3], *(new - 0.1 * (new - old) for new, old in zip(out[3:], (mean, var), strict=True)))

    device.lowering("native_batch_norm", forgetful)


@fault(By("mismatch(move)", "weights read back", phase="data"), group=_GROUP, recipe=_BOTH)
def moved_wrongly(device: Device) -> None:
    """A weight changes while it is moved to the device."""

    def make(upload: Any) -> Any:
        def wrong(host: Any) -> Any:
            if host.is_floating_point() and host.numel() == 48 * 16:
                host = host.clone()
                host[0] += 1e-2
            return upload(host)

        return wrong

    device.patch("shakedown.neuron.runtime", "upload", make)


@fault(By("mismatch(loss)", "/loss/", phase="logging"), group=_GROUP, recipe=_BOTH, hidden_in=("bfloat16",))
def loss_of_another_step(device: Device) -> None:
    """Reading a single number gives the one that was read before."""

    def make(download: Any) -> Any:
        before: dict[Any, Any] = {}

        def wrong(buffer: Any, dtype: Any) -> Any:
            found = download(buffer, dtype)
            if found.numel() != 1 or not found.is_floating_point():
                return found
            now, before[dtype] = before.get(dtype, found), found
            return now.clone()

        return wrong

    device.patch("shakedown.neuron.runtime", "download", make)


@fault(By("mismatch(tie)", "head.weight", phase="data"), group=_GROUP, recipe=_BOTH)
def broken_tie(device: Device) -> None:
    """Moving a model makes two weights of one that is used in two places."""

    def make(to: Any) -> Any:
        def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
            moved = to(self, *args, **kwargs)
            if hasattr(moved, "head") and hasattr(moved, "tokens") and moved.head.weight is moved.tokens.weight:
                weight = moved.head.weight
                moved.head.weight = type(weight)(weight.detach().clone())
            return moved

        return wrong

    device.patch("torch.nn.modules.module", "Module.to", make)


# --- right in another way: nothing may fail -----------------------------------------------------------------------------


@fault(group=_GROUP, recipe=_BOTH, nature="legal")
def sequential_sums(device: Device) -> None:
    """Linear layers add their products one after the other, the least accurate order that is correct."""

    def one_by_one(fn: Any, input: Any, weight: Any, bias: Any = None) -> Any:
        a, w = input.astype("float32"), weight.astype("float32")
        total = a[..., :1] * w[:, 0]
        for k in range(1, w.shape[1]):
            total = total + a[..., k : k + 1] * w[:, k]
        return total if bias is None else total + bias

    device.lowering("linear", one_by_one)


@fault(group=_GROUP, recipe=_BOTH, nature="legal")
def wider_sums(device: Device) -> None:
    """Linear layers compute in float64 and round once."""

    def wide(fn: Any, input: Any, weight: Any, bias: Any = None) -> Any:
        given = [None if x is None else x.astype("float64") for x in (input, weight, bias)]
        return fn(*given)

    device.lowering("linear", wide)


@fault(group=_GROUP, recipe=_BOTH, nature="legal")
def plain_attention(device: Device) -> None:
    """Attention is written out in float32, as a softmax over masked scores."""

    def plain(fn: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        out, *rest = fn(q, k, v, *args, **kwargs)
        jnp = device.numpy
        a, b, c = (x.astype("float32") for x in (q, k, v))
        scores = jnp.einsum("bhid,bhjd->bhij", a, b) / q.shape[-1] ** 0.5
        hidden = jnp.triu(jnp.ones(scores.shape[-2:], bool), 1)
        scores = jnp.where(hidden, -jnp.inf, scores)
        weights = jnp.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        return (jnp.einsum("bhij,bhjd->bhid", weights, c).astype(out.dtype), *rest)

    device.lowering("_scaled_dot_product_fused_attention_overrideable", plain)
