"""Operators that move elements about, against the CPU; and views, in eager mode and as nodes of a functional graph."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from shakedown.neuron import runtime
from shakedown.neuron.graph import GraphLowering
from shakedown.neuron.lowering import registry
from shakedown.neuron.program import Builder
from shakedown.neuron.views import View

from .agreement import LAYOUTS, agree, example, laid_out

pytestmark = pytest.mark.rotating(2, least=3)

aten = torch.ops.aten
functional = torch.nn.functional

MOVES = {
    "cat": lambda x: torch.cat([x, x[:, :2], x.new_zeros(3, 0, 6)], 1),
    "cat of a vector that is empty": lambda x: torch.cat([x, torch.empty(0, device=x.device, dtype=x.dtype)]),
    "stack": lambda x: torch.stack([x, x.flip(0)], -1),
    "flip": lambda x: x.flip(0, -1),
    "roll": lambda x: (x.roll(2), x.roll((1, -2), (0, 2)), x.roll(7, 1)),
    "repeat": lambda x: x.repeat(2, 1, 3, 1),
    "tril and triu": lambda x: (x.tril(-1), x.triu(1), x.tril(2), x[0].triu(-9)),
    "block_diag": lambda x: torch.block_diag(x[0], x[0, 0], x[1, :2]),
    "pixel_shuffle": lambda x: functional.pixel_shuffle(x[None].reshape(1, 4, 3, 6), 2),
    "pixel_unshuffle": lambda x: functional.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: functional.channel_shuffle(x[None].reshape(1, 4, 3, 6), 2),
    "diag_embed": lambda x: (x.diag_embed(), x.diag_embed(1, 0, 2), x.diag_embed(-2, -1, 1)),
    "diagonal copies": lambda x: (aten.diagonal_copy(x, 1, 0, 2), aten.diagonal_copy(x, -2, 1, 2)),
    "diagonal_scatter": lambda x: (x.diagonal_scatter(x[:, 0].T, 0, 0, 1), x.diagonal_scatter(x[:, :3, 2], -1, 1, 2)),
    "slice_scatter": lambda x: (x.slice_scatter(x[:, :2], 1, 1, 3), x.slice_scatter(x[..., :3] * 1, 2, 0, 6, 2)),
    "select_scatter": lambda x: x.select_scatter(x[:, 0], 1, -1),
    "as_strided_scatter": lambda x: x.as_strided_scatter(x[0, :2, :3], (2, 3), (6, 2), 5),
    "constant pad": lambda x: (functional.pad(x, (1, 2)), functional.pad(x, (0, -2, 3, 0), value=1)),
    "split": lambda x: (*aten.unsafe_split(x, 4, 2), *aten.unbind_copy(x, 2)),
    "split copies": lambda x: (*aten.split_with_sizes_copy(x, [1, 3], 1), *aten.split_copy(x, 2)),
    "view copies": lambda x: (aten.view_copy(x, [-1, 4]), aten.permute_copy(x, [2, 0, 1]), aten.t_copy(x[0])),
    "more view copies": lambda x: (aten.squeeze_copy(x[None]), aten.slice_copy(x, 2, 1, 5, 2)),
    "unfold": lambda x: (aten.unfold_copy(x, 2, 3, 2), aten.unfold_copy(x, 1, 2, 2)),
    "chunk_cat": lambda x: torch._chunk_cat([x, x[:, :1]], 1, 3),
    "rot90": lambda x: x.rot90(1, (1, 2)),
}  # fmt: skip
PADS = {
    "reflect 1d": (lambda x: functional.pad(x[0], (2, 3), mode="reflect")),
    "reflect 2d": (lambda x: functional.pad(x, (2, 1, 0, 3), mode="reflect")),
    "reflect 3d": (lambda x: functional.pad(x, (2, 1, 0, 3, 1, 1), mode="reflect")),
    "replicate 1d": (lambda x: functional.pad(x[0], (2, 8), mode="replicate")),
    "replicate 2d": (lambda x: functional.pad(x, (2, -1, 0, 3), mode="replicate")),
    "replicate 3d": (lambda x: functional.pad(x, (2, 1, 0, 3, 1, 1), mode="replicate")),
    "circular": (lambda x: functional.pad(x, (2, 1, 1, 0), mode="circular")),
    "columns of patches": (lambda x: functional.unfold(x[0], (2, 3), dilation=(2, 1), padding=1, stride=(1, 2))),
    "patches added up": (lambda x: functional.fold(x[0].reshape(1, 12, 20), (5, 6), 2)),
}


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
def test_moves(name, dtype):
    agree(MOVES[name], example(dtype, 3, 4, 6))


@pytest.mark.covering
@pytest.mark.parametrize(
    "name", ["cat", "flip", "roll", "tril and triu", "constant pad", "unfold", "as_strided_scatter"]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(name, layout):
    x = laid_out(example(torch.float32, 3, 4, 6), layout)
    if name == "as_strided_scatter" and layout in ("strided", "expanded", "offset"):
        pytest.skip("its strides count in memory, which a copy between devices makes contiguous")
    agree(MOVES[name], x)


@pytest.mark.parametrize("name", [n for n in MOVES if n not in ("chunk_cat", "split copies")])
def test_gradients_of_moves(name):
    agree(MOVES[name], example(torch.float32, 3, 4, 6), gradients=True)


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("name", PADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pads_and_patches(name, dtype):
    # The bfloat16 gradient is added up in bfloat16 on the CPU, and in float32 here.
    agree(PADS[name], example(dtype, 2, 3, 4, 5).repeat(1, 2, 2, 1), gradients=dtype is torch.float32)


def test_joining_promotes():
    agree(lambda x, y: (torch.cat([x, y]), torch.stack([x, y])), example(torch.int64, 3), example(torch.float32, 3))
    agree(lambda x, y: torch.cat([x, y]), example(torch.bool, 3), example(torch.uint8, 2))


def test_eager_views_still_share_memory():
    x = torch.zeros(3, 4, device="neuron")
    for view in (
        x.t(),
        x[1:],
        x.view(-1),
        x.unfold(1, 2, 1),
        x.diagonal(),
        x.expand(2, 3, 4),
        *x.split(2),
        *x.unbind(1),
    ):
        assert view.untyped_storage().buffer is x.untyped_storage().buffer
    x.diagonal().add_(1)
    x.view(2, 6)[1] += 2
    x.squeeze_().t_().transpose_(0, 1)
    assert torch.equal(x.cpu(), torch.eye(3, 4) + torch.tensor([0.0] * 6 + [2.0] * 6).view(3, 4))


def test_the_boxed_door_keeps_a_view_a_view():
    from shakedown.neuron import dispatch

    x = torch.zeros(3, 4, device="neuron")
    y = dispatch.call(aten.transpose.int, (x, 0, 1), {})
    y.add_(1)
    assert x.sum().item() == 12


# --- graphs -----------------------------------------------------------------------------------

GRAPHS = {
    "view": lambda x: x.view(2, -1) + 0,
    "reshape of a transpose": lambda x: x.transpose(0, 2).reshape(6, -1),
    "permute": lambda x: x.permute(2, 0, -2),
    "expand": lambda x: x[:, None].expand(3, 2, -1, 6),
    "slices": lambda x: x[1:, ::3, -4:-1],
    "selects": lambda x: x[-1][:, 2],
    "squeeze": lambda x: (x[:1].squeeze(0), x[:, :1].squeeze(), x[:1, :1].squeeze((0, 1)), x[None].squeeze(2)),
    "split": lambda x: (*x.split(2, 1), *x.split([1, 2], 0), *x.unbind(0), *x.chunk(4, 2)),
    "diagonal": lambda x: (x.diagonal(), x.diagonal(2, 1, 2), x.diagonal(-1, 2, 0), x[0].diagonal(9)),
    "unfold": lambda x: (x.unfold(2, 2, 2), x.unfold(1, 3, 1)),
    "as_strided": lambda x: x.contiguous().as_strided((2, 3), (1, 4)),
    "t and alias": lambda x: (x[0].t(), x.detach(), aten.alias(x)),
    "real numbers as complex": lambda x: torch.view_as_complex(x.view(3, 4, 3, 2)),
    "parts of complex numbers": lambda x: torch.view_as_real(torch.view_as_complex(x.view(3, 4, 3, 2)) * 1j),
    "conjugate": lambda x: torch.view_as_complex(x.view(3, 4, 3, 2)).conj().resolve_conj() + 0,
    "bits": lambda x: (x.view(torch.int32), x.view(torch.uint8), x.view(torch.float64)),
    "writes through views": lambda x: _written(x.clone()),
    "fresh tensors": lambda x: x.new_zeros(3) + torch.ones_like(x)[0, 0, :3] + torch.full_like(x, 2)[0, 0, :3],
    "indexing": lambda x: x[torch.where(x[:, 0, 0] > 1, 1, 0)],
    "writing at an index": lambda x: x.index_put((torch.where(x[:, 0, 0] > 9, 1, 0),), x[0]),
    "repeats of known sum": lambda x: x.repeat_interleave(torch.where(x[0, 0] > 9, 2, 1), 2, output_size=6),
    "masked number": lambda x: x.index_put((x > 0,), x[0, 0, 0]),
}  # fmt: skip


def _written(x: torch.Tensor) -> torch.Tensor:
    x[1:, 0] = 1
    x.transpose(0, 1)[2].mul_(2)
    x.diagonal(0, 1, 2).add_(3)
    x.view(-1)[::5] -= 1
    x.select(2, 3).zero_()
    x.as_strided((2, 2), (1, 2)).add_(1)
    return x


@pytest.mark.covering("mutations_and_views")
@pytest.mark.parametrize("removes", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize("name", GRAPHS)
def test_views_in_functional_graphs(name, removes):
    fn, x = GRAPHS[name], example(torch.float32, 3, 4, 6)
    runtime.start()

    def flat(x: torch.Tensor) -> list[torch.Tensor]:
        out = fn(x)
        return list(out) if isinstance(out, tuple) else [out]

    graph = make_fx(torch.func.functionalize(flat, remove=removes), decomposition_table=registry.decomposition_table())(
        torch.empty_like(x, device="meta")
    ).graph
    builder = Builder(name)
    buffer = builder.parameter("buffer")
    read = builder.read(buffer, View.of(x))
    program = builder.finish(GraphLowering(builder).run(graph, [read]))
    got = runtime.compile(program, name, holds="graph")(runtime.upload(x.view(-1)))
    if program.demands:
        assert int(got.pop()) == 0
    for array, want in zip(got if isinstance(got, list) else [got], flat(x), strict=True):
        host = runtime.download(array.reshape(-1), want.dtype).view(want.shape)
        torch.testing.assert_close(host, want.resolve_conj(), equal_nan=True)
