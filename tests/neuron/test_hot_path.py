"""What a call does beside its computation: executables called as they are, keys, waiting, and what `import torch` brings."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
import torch

from shakedown.neuron import direct, dispatch, runtime

adaptive = pytest.mark.skipif(torch.neuron.adaptive.enabled(), reason="operators are recorded")


def program(run, name, **more):
    torch.neuron.init()
    return runtime.compile(run, name, holds="graph", **more)


def through_jit(monkeypatch, run, *inputs):
    """Whether this call of `run`, a compiled program, goes through ``jax.jit``: it knows no signature by heart then."""
    asked = []
    monkeypatch.setattr(direct, "_launch", lambda *given: asked.append(given) or ())
    results = run(*inputs)
    monkeypatch.undo()
    return bool(asked), results


def test_a_program_is_called_as_it_is_and_gives_what_jit_gives():
    """Values, dtypes, weak types and placement, of one result and of several, where an input is not used."""
    x, n, unused = jnp.arange(4.0), jnp.asarray(3), jnp.ones(7)
    for run in (lambda x, n, unused: x * n, lambda x, n, unused: [x + n, n * 2, jnp.sum(x)], lambda x, n, unused: [x]):
        ours, theirs = program(run, "several"), jax.jit(run)
        for _ in range(3):
            got, want = jax.tree.leaves(ours(x, n, unused)), jax.tree.leaves(theirs(x, n, unused))
            assert type(ours(x, n, unused)) is type(theirs(x, n, unused))
            for a, b in zip(got, want, strict=True):
                assert a.tolist() == b.tolist()
                assert (a.aval, a.sharding, a.committed) == (b.aval, b.sharding, b.committed)


def test_inputs_of_another_kind_get_their_own_executable(monkeypatch):
    run = program(lambda x, y: x + y, "kinds")
    kinds = [
        (jnp.ones(3), jnp.ones(3)),
        (jnp.ones(5), jnp.ones(5)),
        (jnp.ones(3, jnp.int32), jnp.ones(3, jnp.int32)),
        (jnp.ones(3), jnp.asarray(2.5)),
        (jnp.ones(3, jnp.int32), jnp.asarray(2)),
    ]
    for _ in range(2):
        for x, y in kinds:
            got, want = run(x, y), x + y
            assert (got.tolist(), got.aval) == (want.tolist(), want.aval)
    for x, y in kinds:
        assert not through_jit(monkeypatch, run, x, y)[0]
    assert through_jit(monkeypatch, run, jnp.ones(9), jnp.ones(9))[0]
    assert run(jnp.ones(3), 2).tolist() == [3.0, 3.0, 3.0]  # a number, which has to be converted


def test_consumed_inputs_are_gone_and_using_one_again_raises():
    run = program(lambda x, y: [x + y], "consumes", donate=[0])
    y = jnp.ones(4)
    for n in range(3):
        x = jnp.full(4, float(n))
        assert run(x, y)[0].tolist() == [n + 1.0] * 4
        assert x.is_deleted()
        with pytest.raises((RuntimeError, ValueError), match="deleted or donated|has been deleted"):
            run(x, y)
        assert not y.is_deleted()


def test_an_error_of_the_executable_is_the_programs():
    def fails(x):
        def no(x):
            raise ValueError("not today")

        return jax.pure_callback(no, x, x)

    run = program(fails, "fails")
    for _ in range(2):
        with pytest.raises(Exception, match="not today"):
            jax.block_until_ready(run(jnp.ones(2)))


@adaptive
def test_the_first_wait_compiles_nothing():
    code = """
import torch
from shakedown.neuron import events
torch.neuron.init()
before = events.total("compile")
torch.neuron.synchronize(), torch.accelerator.synchronize()
print(events.total("compile") - before, events.total("synchronize"))
"""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert ended.stdout.split() == ["0", "2"], ended.stderr


# --- keys of lists ----------------------------------------------------------------------------------------------------------


def test_lists_that_share_memory_are_told_from_lists_that_do_not():
    """With equal numbers, which are one value, and with members of one storage, whose writes must all be seen."""

    def stepped(device):
        apart = [torch.ones(3, device=device) * n for n in range(1, 4)]
        base = torch.ones(6, device=device)
        halves = [base[:3], base[3:]]
        more = [torch.full((3,), 2.0, device=device) for _ in range(3)]
        for _ in range(2):
            torch._foreach_addcdiv_(apart, more, more, [0.5, 0.5, 0.5])
            torch._foreach_addcdiv_(halves, more[:2], more[:2], [0.5, 0.5])
            torch._foreach_mul_(halves, [3.0, 3.0])
            torch._foreach_add_(apart, 1)
            torch._foreach_addcdiv_(apart[:2], apart[1:], more[1:], [0.5, 0.5])
        return [*apart, base]

    for got, want in zip(stepped("neuron"), stepped("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), want)


@adaptive
def test_equal_numbers_make_no_plan_more():
    more = [torch.full((5,), 2.0, device="neuron") for _ in range(3)]
    plans = dispatch.operator_of(torch.ops.aten._foreach_mul_.ScalarList).plans
    before = len(plans)
    for numbers in ([0.5, 0.5, 0.5], [0.5, 0.25, 0.125], [3.0, 3.0, 2.0], [7.5, 8.5, 9.5]) * 2:
        torch._foreach_mul_(more, numbers)
    assert len(plans) == before + 1


# --- import -------------------------------------------------------------------------------------------------------------

IMPORT = """
import os, sys
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch, importlib.metadata
list(importlib.metadata.entry_points(group="torch.backends"))
before = set(sys.modules)
from shakedown.neuron.autoload import autoload
autoload()
ours = sorted(set(sys.modules) - before)
lines = sum(len(open(sys.modules[n].__file__).readlines()) for n in ours if getattr(sys.modules[n], "__file__", None))
boxed = [k for k in ("PrivateUse1", "AutocastPrivateUse1", "SparsePrivateUse1", "SparseCsrPrivateUse1",
                     "NestedTensorPrivateUse1") if torch._C._dispatch_has_backend_fallback(getattr(torch._C.DispatchKey, k))]
print(*[n for n in ours if not n.startswith(("shakedown", "torch.neuron"))], sep=",")
print(len(ours), lines, *boxed)

# What may be the first use of the device in a process, each in a process of its own.
nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
first = [
    lambda: torch.sparse_coo_tensor(size=(2, 3), device="neuron").to_dense().sum().item() == 0,
    lambda: torch.ops.aten._to_copy(nested, device="neuron").unbind()[1].cpu().tolist() == [1, 1, 1],
]
for number, use in enumerate(first):
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if use() else 3)
        except BaseException as error:
            print(number, type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(4)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@adaptive
def test_import_torch_stays_light_and_every_first_use_starts_the_device():
    """What it costs is counted and not timed: modules, their lines, and boxed kernels, each of which C++ tells all operators."""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", IMPORT], capture_output=True, text=True)
    foreign, counts, *codes = ended.stdout.splitlines()
    modules, lines, *boxed = counts.split()
    assert foreign == "", "modules of others that nothing else needs"
    assert int(modules) <= 45
    assert int(lines) <= 5500
    assert boxed == ["PrivateUse1", "AutocastPrivateUse1"]
    assert codes == ["0", "0"], ended.stderr
