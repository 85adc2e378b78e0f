"""torch.func and forward-mode derivatives on the device, against the CPU: batching, both modes, functional modules, draws."""

import pytest
import torch
import torch.autograd.forward_ad as forward
import torch.nn.functional as F
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_map

from shakedown.neuron import events

pytestmark = pytest.mark.rotating(2, least=3)

_draw = torch.Generator().manual_seed(0)


def normal(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=_draw)


X, Y, W = normal(4, 3), normal(4, 3), normal(5, 3)
SQUARES = normal(4, 3, 3)
POSITIVE = SQUARES @ SQUARES.mT + 3 * torch.eye(3)
IMAGES, KERNELS = normal(4, 2, 6, 6), normal(4, 3, 2, 3, 3)
WHERE = torch.tensor([2, 0, 1, 2])


def agree(fn, *args):
    expected, structure = tree_flatten(fn(*args))
    events.clear()
    actual, found = tree_flatten(fn(*tree_map(lambda t: t.to("neuron"), args)))
    assert not events.names("fallback")
    assert found == structure
    for a, e in zip(actual, expected):
        assert a.device.type == "neuron"
        torch.testing.assert_close(a.detach().cpu(), e.detach(), rtol=1e-3, atol=1e-3, equal_nan=True)


BATCHED = {
    "elementwise": (lambda a, b: (a.sin() * b + a.abs().sqrt()).sigmoid(), X, Y),
    "one side": (lambda a: a * torch.arange(3.0, device=a.device), X),
    "where and clamp": (lambda a, b: torch.where(a > 0, a, b).clamp(-0.5, 0.5), X, Y),
    "dot": (torch.dot, X, Y),
    "mv": (torch.mv, SQUARES, X),
    "mm": (torch.mm, SQUARES, SQUARES),
    "linear": (lambda a: F.linear(a, W.to(a.device)), X),
    "einsum": (lambda a, b: torch.einsum("ij,kj->ik", a, b), SQUARES, SQUARES),
    "conv2d": (lambda a, k: F.conv2d(a, k), IMAGES, KERNELS),
    "pooling": (lambda a: (F.max_pool2d(a, 2), F.avg_pool2d(a, 2)), IMAGES),
    "layer_norm": (lambda a: F.layer_norm(a, (3,)), X),
    "batch_norm": (lambda a: F.batch_norm(a[None], None, None, training=True), IMAGES),
    "softmax": (lambda a: (a.softmax(-1), a.log_softmax(0)), SQUARES),
    "cross_entropy": (lambda a, t: F.cross_entropy(a[None], t[None]), X, WHERE),
    "indexing": (lambda a, i: (a[i], a.index_select(0, i[None]), a.gather(0, i[None])), X, WHERE),
    "embedding": (lambda i: F.embedding(i, W.to(i.device)), WHERE),
    "scatter": (lambda a, i: (a.scatter(0, i[None], 1.0), a.index_put((i[None],), a.new_ones(1))), X, WHERE),
    "reductions": (lambda a: (a.sum(0), a.var(), a.amax(1), a.logsumexp(0), a.norm(), a.prod(1)), SQUARES),
    "order": (lambda a: (a.sort().values, a.topk(2).indices, a.cumsum(0), a.argmax()), X),
    "solve": (lambda a, b: (torch.linalg.solve(a, b), torch.linalg.inv(a), torch.linalg.det(a)), POSITIVE, X),
    "cholesky": (torch.linalg.cholesky, POSITIVE),
    "eigvalsh": (torch.linalg.eigvalsh, POSITIVE),
    "shapes": (lambda a: (a.reshape(-1), a.mT, a.flip(0), a.tril(), a.diagonal(), F.pad(a, (1, 1))), SQUARES),
    "joined": (lambda a, b: (torch.cat([a, b]), torch.stack([a, b]), torch.outer(a, b)), X, Y),
    "attention": (lambda a: F.scaled_dot_product_attention(a[None], a[None], a[None]), SQUARES),
    "interpolate": (lambda a: F.interpolate(a[None], scale_factor=2, mode="bilinear"), IMAGES),
    "nested": (vmap(torch.dot), SQUARES, SQUARES),
    "in place": (lambda a, b: a.clone().add_(b), X, Y),
}


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", BATCHED)
def test_vmap(name):
    fn, *args = BATCHED[name]
    agree(vmap(fn), *args)


def test_vmap_over_other_dimensions():
    agree(vmap(torch.sum, in_dims=1), X)
    agree(vmap(torch.sin, in_dims=1, out_dims=1, chunk_size=2), X)


DIFFERENTIATED = {
    "mlp": (lambda a: (a.tanh() @ W.t().to(a.device)).sin().sum(), X[0]),
    "softmax": (lambda a: a.softmax(-1).prod(), X[0]),
    "det": (torch.linalg.det, POSITIVE[0]),
    "inv": (lambda a: torch.linalg.inv(a).sum(0), POSITIVE[0]),
    "conv": (lambda a: F.conv2d(a, KERNELS[0].to(a.device)).tanh().mean(), IMAGES[0, :, :4, :4]),
    "layer_norm": (lambda a: F.layer_norm(a, (3,)).pow(3).sum(), X[:2]),
    "index": (lambda a: a[torch.tensor([0, 1, 0], device=a.device)].pow(3).sum(), X[0]),
    "gelu": (lambda a: F.gelu(a).sum(), X[0]),
    "cross_entropy": (lambda a: F.cross_entropy(a, WHERE.to(a.device)), X),
    "attention": (lambda a: F.scaled_dot_product_attention(a[None], a[None], a[None]).pow(2).sum(), SQUARES[0]),
}


@pytest.mark.covering("jacrev")
@pytest.mark.parametrize("transform", [jacrev, jacfwd, hessian], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_jacobians(name, transform):
    fn, x = DIFFERENTIATED[name]
    agree(transform(fn), x)


def _mlp(p, a):
    return F.linear(torch.tanh(F.linear(a, p["w"], p["b"])), p["v"]).sum()


def test_gradients_and_products():
    weights = {"w": W, "b": torch.ones(5), "v": W.t()[:2].contiguous()}
    agree(grad(_mlp), weights, X)
    agree(grad_and_value(_mlp), weights, X)
    agree(vmap(grad(_mlp), in_dims=(None, 0)), weights, X)
    agree(lambda a: vjp(torch.sin, a)[1](torch.ones_like(a)), X)
    agree(lambda a, b: jvp(lambda t: t.sin() @ t.T, (a,), (b,)), X, Y)
    agree(lambda a, b: linearize(torch.sin, a)[1](b), X, Y)


def test_functional_modules():
    def ensemble(a):
        torch.manual_seed(0)
        nets = [torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)) for _ in range(3)]
        nets = [net.to(a.device) for net in nets]
        weights, buffers = stack_module_state(nets)
        outputs = vmap(lambda w, b: functional_call(nets[0], (w, b), (a,)))(weights, buffers)
        one = {n: p.detach() for n, p in nets[0].named_parameters()}
        per_sample = vmap(grad(lambda w, x: functional_call(nets[0], w, (x[None],)).sum()), in_dims=(None, 0))
        return outputs, per_sample(one, a)

    agree(ensemble, X)


DRAWS = {
    "rand": lambda a: a * 0 + torch.rand(3, device=a.device),
    "dropout": lambda a: F.dropout(a * 0 + 1, 0.5),
    "randn_like": lambda a: torch.randn_like(a),
    "randint": lambda a: a * 0 + torch.randint(0, 1000, (3,), device=a.device),
    "randperm": lambda a: a[0] * 0 + torch.randperm(9, device=a.device),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_differ_or_agree_as_asked(name):
    wide = X[:, :1].expand(4, 64).contiguous() if name in ("dropout", "randn_like") else X
    x = wide.to("neuron")
    torch.manual_seed(0)
    different = vmap(DRAWS[name], randomness="different")(x)
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(DRAWS[name])(x)
    if name in ("rand", "randint", "randperm"):  # functorch draws once for tensors without a batch
        same = vmap(DRAWS[name], randomness="same")(x)
        assert torch.equal(same[0], same[1])


FORWARD = {
    "linear": lambda a: F.linear(a, W.to(a.device), torch.ones(5, device=a.device)),
    "conv": lambda a: F.conv2d(a.reshape(1, 1, 4, 3), KERNELS[0, :, :1].to(a.device), padding=1),
    "matmul": lambda a: a @ a.t(),
    "norms": lambda a: (F.layer_norm(a, (3,)), torch.linalg.norm(a), F.normalize(a)),
    "softmax": lambda a: (a.softmax(0), a.log_softmax(1), a.logsumexp(0)),
    "pooling": lambda a: (F.max_pool1d(a, 2), F.avg_pool1d(a, 2)),
    "order": lambda a: (a.sort(1).values, a.max(0).values, a.cumsum(1), a.cumprod(0)),
    "linalg": lambda a: (torch.linalg.inv(a.t() @ a), torch.linalg.svdvals(a), torch.linalg.qr(a).R),
    "indexing": lambda a: (a[WHERE.to(a.device)], a.index_select(0, WHERE.to(a.device)), a.gather(1, a.argsort(1))),
    "attention": lambda a: F.scaled_dot_product_attention(a[None], a[None], a[None]),
    "glu": lambda a: F.glu(a, 0),
    "writes": lambda a: a.clone().mul_(a).index_fill_(0, WHERE.to(a.device)[:1], 1.0),
}


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode(name):
    def tangents(a, t):
        with forward.dual_level():
            made = tree_flatten(FORWARD[name](forward.make_dual(a, t)))[0]
            return [forward.unpack_dual(o).tangent for o in made]

    with sdpa_kernel(SDPBackend.MATH):  # the CPU's own choice has no forward derivative in every version
        agree(tangents, X, Y)


def test_layers_keep_their_own_derivative_after_forward_mode():
    with forward.dual_level():
        pass
    out = F.linear(X.to("neuron").requires_grad_(), W.to("neuron"))
    assert out.grad_fn.name() == "LinearBackward0"


TWICE = ("linear", "conv", "matmul", "norms", "softmax", "pooling", "order", "indexing", "glu")


@pytest.mark.parametrize("name", TWICE)
def test_double_backward(name):
    def second(a):
        a = a.detach().requires_grad_()
        total = sum(o.sin().sum() for o in tree_flatten(FORWARD[name](a))[0])
        (first,) = torch.autograd.grad(total, a, create_graph=True)
        return torch.autograd.grad(first.cos().sum(), a)

    agree(second, X)
