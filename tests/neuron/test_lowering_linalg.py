"""Factorisations, systems and spectra on matrices that are awkward: singular, indefinite, empty, batched, badly scaled."""

from functools import partial

import pytest
import torch

from shakedown.conformance.databases import moved
from shakedown.neuron import events

from .agreement import agree

pytestmark = pytest.mark.rotating(2, least=3)

TYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
INF, NAN = torch.inf, torch.nan


def draw(*size, dtype=torch.float64, seed=0):
    return torch.randn(*size, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def symmetric(*size, dtype=torch.float64, seed=0, hermitian=False):
    a = draw(*size, dtype=dtype, seed=seed)
    return a + (a.mH if hermitian else a.mT)


def definite(*size, dtype=torch.float64, seed=0):
    a = draw(*size, dtype=dtype, seed=seed)
    return a @ a.mH + torch.eye(size[-1], dtype=dtype)


def tensors(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def same_layout(fn, *args):
    """Dtypes, sizes and strides of ``fn(*args)`` are the CPU's."""
    expected, actual = tensors(fn(*args)), tensors(fn(*moved(args)))
    assert [(t.dtype, t.shape, t.stride()) for t in actual] == [(t.dtype, t.shape, t.stride()) for t in expected]


def same_error(fn, *args):
    """Both devices raise, the same exception with the same words, and the device is not said to have fallen back."""
    with pytest.raises(Exception) as here:
        fn(*args)
    with pytest.raises(type(here.value)) as there:
        fn(*moved(args))
    assert str(there.value) == str(here.value)


# --- layouts ----------------------------------------------------------------------------------

SIZES = [(3, 3), (2, 4, 4), (0, 0), (2, 0, 0), (0, 3, 3), (1, 1)]
RECTANGLES = [*SIZES, (5, 3), (2, 3, 5), (0, 3), (3, 0), (2, 0, 3)]
SQUARE = {
    "cholesky_ex": lambda a: torch.linalg.cholesky_ex(a @ a.mH),
    "cholesky_inverse": torch.cholesky_inverse,
    "eig": torch.linalg.eig,
    "eigh": torch.linalg.eigh,
    "eigvalsh": torch.linalg.eigvalsh,
    "eigvals": torch.linalg.eigvals,
    "inv_ex": torch.linalg.inv_ex,
    "slogdet": torch.ops.aten._linalg_slogdet,
    "det": torch.ops.aten._linalg_det,
    "solve_ex": lambda a: torch.ops.aten._linalg_solve_ex(a, a),
    "solve_ex.right": lambda a: torch.ops.aten._linalg_solve_ex(a, a, left=False),
    "ldl_factor_ex": torch.linalg.ldl_factor_ex,
    "matrix_exp": torch.linalg.matrix_exp,
    "triangular_solve": lambda a: torch.ops.aten.triangular_solve(a, a),
}
ANY = {
    "svd": torch.linalg.svd,
    "svd.thin": lambda a: torch.linalg.svd(a, full_matrices=False),
    "svdvals": torch.linalg.svdvals,
    "qr": torch.linalg.qr,
    "qr.complete": lambda a: torch.linalg.qr(a, mode="complete"),
    "qr.r": lambda a: torch.linalg.qr(a, mode="r"),
    "geqrf": torch.geqrf,
    "lu": torch.linalg.lu,
    "lu_factor_ex": torch.linalg.lu_factor_ex,
}


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", SQUARE)
def test_layouts_of_square(name):
    for size in SIZES:
        same_layout(SQUARE[name], draw(*size))


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", ANY)
def test_layouts_of_rectangles(name):
    for size in RECTANGLES:
        same_layout(ANY[name], draw(*size))


# --- factorisations ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_that_fails_leaves_what_lapack_leaves(dtype, upper):
    """The leading minors before the failure are factorised, the rest is as it was; the batch's others are whole."""
    good = definite(6, 6, dtype=dtype)
    halfway, at_once = good.clone(), good.clone()
    halfway[3, 3] = -1
    at_once[0, 0] = 0
    for a in (good, halfway, at_once, torch.stack([good, halfway, at_once, good])):
        agree(partial(torch.linalg.cholesky_ex, upper=upper), a)


def test_only_one_triangle_is_read():
    a = definite(4, 4)
    for upper in (False, True):
        other = (a.triu() if upper else a.tril()) + 7 * (
            torch.ones(4, 4).tril(-1) if upper else torch.ones(4, 4).triu(1)
        )
        agree(partial(torch.linalg.cholesky_ex, upper=upper), other)
        agree(partial(torch.linalg.eigvalsh, UPLO="U" if upper else "L"), other)
        agree(partial(torch.cholesky_inverse, upper=upper), other)
        agree(partial(torch.linalg.solve_triangular, upper=upper), other, a)
        if not upper:
            agree(torch.linalg.ldl_factor_ex, other)


def test_singular_lu_says_where():
    a = draw(2, 4, 4)
    a[1, :, 2] = 0
    a[0, :, 0] = 0
    agree(torch.linalg.lu_factor_ex, a)
    agree(torch.linalg.lu_factor_ex, torch.zeros(3, 5))
    agree(torch.linalg.det, a)
    agree(torch.linalg.slogdet, a)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_determinants_and_their_gradients_use_the_same_factors(transposed, dtype):
    """PyTorch factorises the transpose of a row-major matrix, and its gradient relies on which one it was."""
    a = draw(2, 4, 4, dtype=dtype)
    a = a.mT if transposed else a
    agree(torch.ops.aten._linalg_det, a)
    agree(torch.ops.aten._linalg_slogdet, a)
    agree(lambda a: torch.ops.aten._linalg_solve_ex(a, a), a)

    def gradients(a):
        a = a.detach().requires_grad_()
        total = (
            torch.linalg.det(a).abs().sum()
            + torch.linalg.slogdet(a)[1].sum()
            + torch.linalg.solve(a, a[..., 0]).abs().sum()
        )
        return torch.autograd.grad(total, a)[0]

    agree(gradients, a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
@pytest.mark.parametrize("n", [2, 9])
def test_ldl(n, dtype):
    """Blocks of one and of two rows, as LAPACK chooses them; a zero diagonal makes it choose pairs."""
    for hermitian in (False, True) if dtype.is_complex else (False,):
        for zero in (False, True):
            a = symmetric(2, n, n, dtype=dtype, seed=n, hermitian=hermitian)
            if zero:
                a.diagonal(dim1=-2, dim2=-1).zero_()
            agree(partial(torch.linalg.ldl_factor_ex, hermitian=hermitian), a)
            factors = torch.linalg.ldl_factor(a, hermitian=hermitian)
            assert not zero or bool((factors.pivots < 0).any())
            agree(partial(torch.linalg.ldl_solve, hermitian=hermitian), *factors, draw(2, n, 3, dtype=dtype))


def test_ldl_of_a_singular_matrix():
    a = torch.zeros(4, 4, dtype=torch.float64)
    a[3, 1] = a[1, 3] = 2
    agree(torch.linalg.ldl_factor_ex, a)
    agree(torch.linalg.ldl_factor_ex, torch.zeros(3, 3))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reflectors(dtype):
    tall = draw(2, 5, 3, dtype=dtype)
    held, tau = torch.geqrf(tall)
    agree(torch.geqrf, tall)
    agree(torch.geqrf, tall.mT)
    agree(torch.linalg.householder_product, held, tau)
    agree(torch.linalg.householder_product, held, tau[..., :2])
    for left in (True, False):
        for transpose in (True, False):
            other = draw(2, 5, 4, dtype=dtype)
            agree(partial(torch.ormqr, left=left, transpose=transpose), held, tau, other if left else other.mT)


def test_permutations():
    a = draw(3, 5, 4)
    factors, pivots = torch.linalg.lu_factor(a)
    for data in (True, False):
        for rows in (True, False):
            agree(partial(torch.lu_unpack, unpack_data=data, unpack_pivots=rows), factors, pivots)
    square = torch.linalg.lu_factor(a[..., :4, :])
    for left in (True, False):
        for adjoint in (True, False):
            agree(partial(torch.linalg.lu_solve, left=left, adjoint=adjoint), *square, draw(3, 4, 4, seed=2))
            agree(partial(torch.linalg.lu_solve, left=left, adjoint=adjoint), *square, draw(4, 4, seed=2))


# --- systems ----------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("size", [(5, 3), (3, 5), (4, 4), (2, 5, 3), (2, 3, 5)])
def test_least_squares(driver, size):
    a, b, c = draw(*size), draw(*size[:-1], 2, seed=3), draw(*size[:-1], seed=4)
    for sides in (b, c):
        agree(partial(torch.linalg.lstsq, driver=driver), a, sides)
        same_layout(partial(torch.linalg.lstsq, driver=driver), a, sides)
    agree(lambda a, b: torch.linalg.lstsq(a, b, driver=driver).solution, a.to(torch.complex128), b.to(torch.complex128))


def test_least_squares_without_full_rank():
    a = draw(4, 2) @ draw(2, 3, seed=1)
    agree(torch.linalg.lstsq, a, draw(4, 2, seed=2))
    for driver in ("gelsd", "gelss"):
        agree(partial(torch.linalg.lstsq, rcond=0.5, driver=driver), draw(3, 4), draw(3, 2, seed=2))
    # Of the size of the residuals only the CPU knows, after the fact: it computes them, and that is recorded.
    b = draw(4, 2, seed=2)
    actual = torch.linalg.lstsq(a.to("neuron"), b.to("neuron"), driver="gelsd")
    assert actual.residuals.shape == torch.linalg.lstsq(a, b, driver="gelsd").residuals.shape == (0,)
    assert torch.neuron.get_fallback_ops()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_exponential_of_small_and_large_matrices(dtype):
    a = draw(5, 6, 6, dtype=dtype) * torch.tensor([0, 1e-9, 0.3, 3, 20], dtype=dtype)[:, None, None]
    agree(torch.linalg.matrix_exp, a[:4])
    big = torch.linalg.matrix_exp(a[4].to("neuron")).cpu()
    scale = big.abs().max()
    wide = torch.linalg.matrix_exp(a[4].to(torch.complex128 if dtype.is_complex else torch.float64))
    digits = torch.finfo(dtype).eps * 200
    torch.testing.assert_close(big / scale, (wide / scale).to(dtype), rtol=digits, atol=digits)
    agree(torch.linalg.matrix_exp, torch.tensor([[2.0]]))
    agree(torch.linalg.matrix_exp, torch.tensor([[1.0, NAN], [0.0, 1.0]]))


# --- spectra ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_decompositions_give_the_matrix_back(dtype):
    """Vectors are determined up to a factor, so it is their products that are compared."""
    a, s = draw(2, 5, 4, dtype=dtype).to("neuron"), symmetric(2, 5, 5, dtype=dtype, hermitian=True).to("neuron")
    digits = {"rtol": 1e-4, "atol": 1e-4} if dtype in (torch.float32, torch.complex64) else {"rtol": 1e-9, "atol": 1e-9}
    u, d, vh = torch.linalg.svd(a, full_matrices=False)
    torch.testing.assert_close((u * d[..., None, :] @ vh).cpu(), a.cpu(), **digits)
    for uplo in "LU":
        w, v = torch.linalg.eigh(s, UPLO=uplo)
        torch.testing.assert_close((v * w[..., None, :] @ v.mH).cpu(), s.cpu(), **digits)
        torch.testing.assert_close(w.cpu(), torch.linalg.eigvalsh(s.cpu(), UPLO=uplo), **digits)
    w, v = torch.linalg.eig(s)
    torch.testing.assert_close((s.to(v.dtype) @ v).cpu(), (v * w[..., None, :]).cpu(), **digits)
    assert not torch.neuron.get_fallback_ops()


def test_singular_values_of_ties_and_zeros():
    for a in (torch.zeros(3, 4), torch.eye(4), torch.ones(4, 3), torch.diag(torch.tensor([1e20, 1, 1e-20]))):
        agree(torch.linalg.svdvals, a)
        agree(torch.linalg.matrix_rank, a)
        agree(torch.linalg.pinv, a)


# --- what the values make wrong ---------------------------------------------------------------

BAD = torch.full((3, 3), NAN)
BATCH = torch.stack([torch.eye(3), BAD])
SINGULAR = torch.zeros(2, 3, 3)
NEGATIVE = torch.stack([torch.eye(3), -torch.eye(3)])


@pytest.mark.rotating(2)
@pytest.mark.parametrize(
    ("fn", "value"),
    [
        (torch.linalg.svd, BAD),
        (torch.linalg.svdvals, BATCH),
        (torch.linalg.eigh, BAD),
        (torch.linalg.eigvalsh, BATCH),
        (torch.linalg.eig, BATCH),
        (torch.linalg.eig, torch.tensor([[1.0, INF], [0.0, 1.0]])),
        (torch.linalg.cholesky, NEGATIVE),
        (lambda a: torch.linalg.cholesky_ex(a, check_errors=True), NEGATIVE),
        (torch.linalg.inv, SINGULAR),
        (lambda a: torch.linalg.inv_ex(a, check_errors=True), SINGULAR),
        (lambda a: torch.linalg.solve(a, a), SINGULAR),
        (lambda a: torch.linalg.solve_ex(a, a, check_errors=True), SINGULAR),
        (torch.linalg.lu_factor, SINGULAR),
        (lambda a: torch.linalg.lu_factor_ex(a, check_errors=True), SINGULAR),
        (lambda a: torch.linalg.lstsq(a, a, driver="gels"), torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])),
        (lambda a: torch.linalg.lu(a, pivot=False), SINGULAR),
        (lambda a: torch.linalg.svd(a, driver="gesvd"), SINGULAR),
        (lambda a: torch.linalg.qr(a, mode="some"), SINGULAR),
        (lambda a: torch.linalg.lstsq(a, a[..., :2, :]), SINGULAR),
        (lambda a: torch.linalg.lstsq(a, a, driver="none"), SINGULAR),
        (torch.linalg.cholesky, torch.ones(2, 3)),
        (torch.linalg.det, torch.ones(2, 3)),
        (torch.linalg.cholesky, torch.ones(2, 2, dtype=torch.int64)),
        (torch.geqrf, torch.ones(2, 2, dtype=torch.int64)),
    ],
)
def test_errors_are_the_cpus(fn, value):
    same_error(fn, value)


def test_pivots_out_of_range():
    pivots = torch.tensor([1, 2, 9], dtype=torch.int32)
    same_error(torch.lu_unpack, torch.eye(3), pivots)
    same_error(torch.linalg.lu_solve, torch.eye(3), pivots, torch.eye(3))


# --- other forms ------------------------------------------------------------------------------


def test_out_forms():
    a, b = definite(3, 3), draw(3, 2)

    def filled(fn, *args):
        expected = tensors(fn(*args))
        outs = [torch.empty(0, dtype=t.dtype, device=args[0].device) for t in expected]
        return fn(*args, out=outs[0] if len(outs) == 1 else tuple(outs))

    for fn, args in [
        (torch.linalg.solve, (a, b)),
        (torch.linalg.solve_ex, (a, b)),
        (torch.linalg.eigvals, (a,)),
        (torch.linalg.slogdet, (a,)),
        (torch.linalg.lstsq, (a, b)),
        (torch.geqrf, (a,)),
        (torch.linalg.lu_factor_ex, (a,)),
        (torch.linalg.pinv, (a,)),
        (torch.linalg.cholesky_ex, (a,)),
        (torch.linalg.svdvals, (a,)),
    ]:
        agree(partial(filled, fn), *args)


def test_compiled():
    @torch.compile(backend="neuron", fullgraph=True)
    def loss(a, b):
        q, r = torch.linalg.qr(a)
        spd = a @ a.mT + torch.eye(4, dtype=a.dtype, device=a.device)
        x = torch.linalg.solve_triangular(r, q.mT @ b, upper=True)
        y = torch.cholesky_solve(b, torch.linalg.cholesky_ex(spd)[0])
        return (
            (x + y + torch.linalg.solve_ex(spd, b)[0] + torch.linalg.matrix_exp(a / 9) @ b).sum()
            + torch.linalg.svdvals(a).sum()
            + torch.linalg.slogdet(spd)[1]
            + torch.linalg.det(a)
        )

    def grads(device):
        a, b = draw(4, 4).to(device).requires_grad_(), draw(4, 2, seed=1).to(device).requires_grad_()
        value = (loss if device == "neuron" else loss._torchdynamo_orig_callable)(a, b)
        return [value.detach(), *torch.autograd.grad(value, (a, b))]

    events.clear()
    actual = grads("neuron")
    assert not torch.neuron.get_fallback_ops()
    torch.testing.assert_close([t.cpu() for t in actual], grads("cpu"), rtol=1e-8, atol=1e-8)


def test_compiled_checks_raise():
    """A check of values in a graph is part of its program, and raises what eager execution raises."""
    factor = torch.compile(lambda a: 2 * torch.linalg.cholesky(a), backend="neuron", fullgraph=True)
    a = definite(3, 3)
    torch.testing.assert_close(factor(a.to("neuron")).cpu(), 2 * torch.linalg.cholesky(a))
    with pytest.raises(torch.linalg.LinAlgError, match="order 1 is not positive-definite"):
        factor(-a.to("neuron"))
    solve = torch.compile(lambda a: torch.linalg.solve(a, a), backend="neuron", fullgraph=True)
    there = a.to("neuron").requires_grad_()
    (gradient,) = torch.autograd.grad(solve(there).sum(), there)
    torch.testing.assert_close(gradient.cpu(), torch.zeros_like(a), atol=1e-9, rtol=0)
    assert not torch.neuron.get_fallback_ops()
