"""Gather, scatter, indexing by tensors, and operators whose sizes depend on data, against the CPU."""

import pytest
import torch

from shakedown.neuron import events

from .agreement import LAYOUTS, agree, example, laid_out

pytestmark = pytest.mark.rotating(2, least=3)

aten = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def places(high: int, *size: int, seed: int = 1, negative: bool = False) -> torch.Tensor:
    return torch.randint(-high if negative else 0, high, size, generator=torch.Generator().manual_seed(seed))


I45 = places(4, 4, 5)
COLUMNS = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(n)) for n in range(5)], 1)
I23 = places(4, 2, 3)
ROWS = torch.tensor([2, 0, 2, 3])

READS = {
    "gather": lambda x: x.gather(0, I45.to(x.device)),
    "gather of a corner": lambda x: x.gather(1, I23.to(x.device)),
    "take_along_dim": lambda x: x.take_along_dim(x.argsort(dim=1, stable=True), 1),
    "index_select": lambda x: x.index_select(1, ROWS.to(x.device)),
    "take": lambda x: x.take(places(20, 3, 2, negative=True).to(x.device)),
    "one index": lambda x: x[ROWS.to(x.device)],
    "negative index": lambda x: x[:, -ROWS.to(x.device) - 1],
    "broadcast indices": lambda x: x[ROWS.to(x.device)[:, None], ROWS.to(x.device)],
    "int32 index": lambda x: x[ROWS.to(x.device, torch.int32)],
    "index after None": lambda x: x[None, :, ROWS.to(x.device)],
    "mask": lambda x: x[(x != 0)],
    "mask of rows": lambda x: x[torch.tensor([True, False, True, True], device=x.device)],
    "mask and index": lambda x: x[torch.tensor([True, False, True, True], device=x.device), ROWS[:3].to(x.device)],
    "masked_select": lambda x: x.masked_select(x[:1] != 0),
    "nonzero": lambda x: x.nonzero(),
    "nonzero as tuple": lambda x: x.nonzero(as_tuple=True),
    "nonzero_static": lambda x: (x.nonzero_static(size=3), x.nonzero_static(size=30, fill_value=-7)),
    "repeat_interleave": lambda x: x.repeat_interleave(ROWS.to(x.device), 0),
    "unique": lambda x: x.unique(return_inverse=True, return_counts=True),
    "unique rows": lambda x: torch.cat([x, x[1:3]]).unique(dim=0, return_inverse=True, return_counts=True),
    "unique columns": lambda x: torch.cat([x, x[:, 1:3]], 1).unique(dim=1, return_counts=True),
    "unique_consecutive": lambda x: (
        x.flatten().sort().values.unique_consecutive(return_inverse=True, return_counts=True)
    ),
    "unique_consecutive rows": lambda x: x[[0, 0, 1, 1, 0]].unique_consecutive(dim=0, return_counts=True),
}


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_reads(name, dtype):
    agree(READS[name], example(dtype, 4, 5))


@pytest.mark.covering
@pytest.mark.parametrize("name", ["gather", "index_select", "one index", "mask", "masked_select", "nonzero"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(name, layout):
    agree(READS[name], laid_out(example(torch.float32, 4, 5), layout))


@pytest.mark.parametrize(
    "name",
    [
        "gather",
        "gather of a corner",
        "index_select",
        "take",
        "broadcast indices",
        "mask",
        "masked_select",
        "repeat_interleave",
    ],
)
def test_gradients_of_reads(name):
    agree(READS[name], example(torch.float32, 4, 5), gradients=True)


def to(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return index.to(x.device)


WRITES = {
    "scatter": lambda x, y: x.scatter(0, to(COLUMNS, x), y),
    "scatter of a number": lambda x, y: x.scatter(0, to(I23, x), 1),
    "scatter_add": lambda x, y: x.scatter_add(0, to(I45, x), y),
    "scatter_add to a corner": lambda x, y: x.scatter_add(1, to(I23, x), y),
    "scatter add": lambda x, y: x.scatter(0, to(I45, x), y, reduce="add"),
    "scatter multiply": lambda x, y: x.scatter(0, to(I45, x), 3, reduce="multiply"),
    **{
        f"scatter_reduce {how}{'' if include else ' afresh'}": lambda x, y, how=how, include=include: x.scatter_reduce(
            0, to(I45, x), y, how, include_self=include
        )
        for how in ("sum", "prod", "mean", "amax", "amin")
        for include in (True, False)
    },
    "index_add": lambda x, y: x.index_add(0, to(ROWS, x), y, alpha=2),
    "index_copy": lambda x, y: x.index_copy(1, to(torch.tensor([4, 0]), x), y[:, :2]),
    "index_fill": lambda x, y: x.index_fill(1, to(-ROWS, x), 2),
    **{
        f"index_reduce {how}": lambda x, y, how=how: x.index_reduce(0, to(ROWS, x), y, how, include_self=False)
        for how in ("prod", "mean", "amax", "amin")
    },
    "put": lambda x, y: x.put(to(torch.tensor([3, -1, 7]), x), y[0, :3]),
    "put and accumulate": lambda x, y: x.put(to(torch.tensor([3, -1, 3]), x), y[0, :3], accumulate=True),
    "index_put": lambda x, y: x.index_put((to(torch.tensor([0, -1]), x), to(torch.tensor([2, 4]), x)), y[0, 0]),
    "index_put and accumulate": lambda x, y: x.index_put((to(ROWS, x),), y, accumulate=True),
    "index_put by columns": lambda x, y: aten.index_put(x, [None, to(torch.tensor([1, 3]), x)], y[:, :2]),
    "masked number": lambda x, y: x.index_put((y != 0,), y[0, 0]),
    "masked rows": lambda x, y: x.index_put((y[:, 0] != 0,), y[:1]),
    "masked columns": lambda x, y: aten.index_put(x, [None, y[0] != 0], y[:, :1]),
    "masked values": lambda x, y: x.index_put((y != 0,), y[y != 0]),
    "masked_scatter": lambda x, y: x.masked_scatter(y != 0, y),
}
LIMITED = {  # what the CPU does not offer for booleans (its arithmetic there is an accident), or rounds at every step
    torch.bool: (
        "scatter_add",
        "scatter add",
        "scatter multiply",
        "scatter_reduce",
        "index_add",
        "index_reduce",
        "accumulate",
    ),
    torch.bfloat16: ("prod", "mean", "accumulate"),
}


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_writes(name, dtype):
    if any(part in name for part in LIMITED.get(dtype, ())):
        pytest.skip("not comparable with the CPU in this dtype")
    agree(WRITES[name], example(dtype, 4, 5), example(dtype, 4, 5, seed=2))


@pytest.mark.parametrize(
    "name",
    [
        "scatter",
        "scatter_add",
        "scatter_reduce sum",
        "scatter_reduce mean afresh",
        "index_add",
        "index_copy",
        "index_put",
        "masked_scatter",
        "masked rows",
    ],
)
def test_gradients_of_writes(name):
    y = example(torch.float32, 4, 5, seed=2)
    agree(lambda x, z: WRITES[name](x, z), example(torch.float32, 4, 5), y, gradients=True)


def test_writes_in_place_through_views():
    def chain(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        rows = to(torch.tensor([1, 3]), x)
        x.t()[rows] = 7
        x[1:, ::2].index_add_(0, to(torch.tensor([0, 0, 2]), x), torch.ones(3, 3, device=x.device))
        x[x > 6] = -1
        x[:, 1:][x[:, 1:] < 0] += 0.5
        x[0].scatter_(0, to(torch.tensor([4]), x), 9.0)
        x[rows, rows] = torch.tensor([5.0, 6.0], device=x.device)
        return x

    agree(chain, example(torch.float32, 4, 5))


def test_indices_on_the_cpu():
    x = example(torch.float32, 4, 5)
    device = x.to("neuron")
    assert torch.equal(device[ROWS].cpu(), x[ROWS])
    assert torch.equal(device[x > 0].cpu(), x[x > 0])
    device[ROWS] = 0.0
    assert torch.equal(device.cpu(), x.index_fill(0, ROWS, 0.0))


def test_indices_apart_move_to_the_front():
    x = example(torch.float32, 3, 4, 2, 5)
    i, j = places(3, 2, 1), places(5, 6)
    agree(lambda x, i, j: (x[i, :, :, j], x[:, i, 0:1, j], x[:, :, i % 2, j], x[..., j]), x, i, j)
    agree(lambda x, i, j: aten.index_put(x, [i, None, None, j], x[i, :, :, j] + 1), x, i, j)


@pytest.mark.covering
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("by_frequency", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_embedding(padding, by_frequency, dtype):
    index = torch.tensor([[1, 2, 2], [6, 1, 1]])
    agree(
        lambda w, i: torch.nn.functional.embedding(i, w, padding, scale_grad_by_freq=by_frequency),
        example(dtype, 7, 4),
        index,
        gradients=True,
    )


def test_embedding_with_a_largest_norm_changes_only_what_is_used():
    def renormed(w: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w = w.clone()
        return torch.nn.functional.embedding(i, w, max_norm=2.0, norm_type=1.0), w

    agree(renormed, example(torch.float32, 7, 4), torch.tensor([1, 2, 2]))


def test_bincount_and_one_hot():
    x = torch.tensor([1, 5, 1, 0, 1])
    agree(lambda x: (x.bincount(), x.bincount(minlength=9), torch.nn.functional.one_hot(x)), x)
    agree(lambda x, w: x.bincount(w), x, torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0]))
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.tensor([-1], device="neuron").bincount()


@pytest.mark.parametrize("size", [(), (0,), (0, 3), (3, 0)], ids=str)
def test_scalars_and_empty_tensors(size):
    x = example(torch.float32, *size)
    agree(
        lambda x: (x.nonzero(), x.unique(), x[x != 0], x.masked_select(x != 0), *torch._unique2(x, True, True, True)), x
    )
    empty = torch.zeros(0, dtype=torch.int64)
    if size:
        agree(lambda x, e: (x.index_select(0, e), x[e], x.index_add(0, e, x[e]), x.take(e)), x, empty)
    else:
        agree(lambda x, e: (x.gather(0, e), x.scatter(0, e, x[None][:0])), x, empty)
        agree(
            lambda x: (
                x.gather(0, torch.zeros_like(x, dtype=torch.int64)),
                x.index_fill(0, torch.zeros_like(x).long(), 3),
            ),
            x,
        )


def test_nan_is_not_lost_by_reductions_and_repeats_in_unique():
    x = torch.tensor([1.0, float("nan"), 3.0, float("nan")])
    agree(lambda x: (x.unique(), *x.unique_consecutive(return_counts=True)), x)
    agree(lambda x: x.scatter_reduce(0, to(torch.tensor([0, 0, 1, 2]), x), x, "amax"), x)


def test_another_count_of_true_elements_compiles_nothing_new_in_nonzero():
    mask = torch.zeros(64, device="neuron")
    for count in (20, 33):
        mask[:count] = 1
        mask.nonzero()
    events.clear()
    mask[:40] = 1
    assert mask.nonzero().shape == (40, 1)
    assert "aten.nonzero_static" not in events.names("compile")


def test_a_number_under_a_mask_reads_nothing_on_the_host():
    x = example(torch.float32, 4, 5).to("neuron")
    mask = x > 0
    events.clear()
    x[mask] = 0
    assert not [
        r for r in events.snapshot() if r["kind"] in ("transfer", "synchronize") and "device-to-host" in r["name"]
    ]
    assert x.max().item() == 0


def test_into_a_given_tensor():
    def out(x: torch.Tensor) -> list[torch.Tensor]:
        places, values = x.new_empty(0, dtype=torch.int64), x.new_empty(0)
        torch.nonzero(x, out=places)
        torch.masked_select(x, x > 0, out=values)
        return [places, values]

    agree(out, example(torch.float32, 4, 5))
    x, wrong = torch.ones(3, device="neuron"), torch.empty(0, dtype=torch.int64, device="neuron")
    with pytest.raises(RuntimeError, match="scalar type"):
        torch.masked_select(x, x > 0, out=wrong)
