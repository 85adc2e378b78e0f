"""``torch.compile(backend="neuron")``: one program per graph, the same results as eager on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from shakedown.neuron import events
from shakedown.readiness.workload import load, resolve

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled(fn, **options):
    return torch.compile(fn, backend="neuron", dynamic=False, **options)


def graphs() -> dict[str, int]:
    return {
        r["name"].rsplit("_", 1)[-1]: r["count"]
        for r in events.snapshot()
        if r["kind"] == "execute" and r["name"].startswith("graph::")
    }


def fallbacks() -> list[str]:
    return events.names("fallback")


@pytest.mark.parametrize(("workload", "size", "length"), [("decoder", 2, 16), ("cnn", 2, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_is_two_graphs_without_fallback(workload, size, length, dtype):
    source = load(resolve(workload))
    torch.manual_seed(0)
    reference = source.build_model().to(dtype)
    batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in source.make_batch(size, length).items()}
    module = copy.deepcopy(reference).to("neuron")
    losses = {}
    for name, model, device in (("cpu", reference, "cpu"), ("neuron", module, "neuron")):
        optimizer = source.build_optimizer(model.parameters())
        data = {k: v.to(device) for k, v in batch.items()}
        forward = source.forward if device == "cpu" else compiled(source.forward, fullgraph=True)
        losses[name] = []
        for _ in range(3):
            optimizer.zero_grad()
            _, loss = forward(model, data)
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    assert graphs() == {"forward": 3, "backward": 3}
    assert fallbacks() == []
    tolerance = 1e-4 if dtype is torch.float32 else 5e-2
    assert losses["neuron"] == pytest.approx(losses["cpu"], rel=tolerance)
    for (name, ours), theirs in zip(module.state_dict().items(), reference.state_dict().values()):
        torch.testing.assert_close(
            ours.cpu(), theirs, rtol=tolerance * 10, atol=tolerance * 10, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_third_identical_step_compiles_nothing():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to("neuron")
    step = compiled(lambda x: module(x).square().mean())
    for _ in range(2):
        step(torch.ones(3, 4, device="neuron")).backward()
    events.clear()
    step(torch.ones(3, 4, device="neuron")).backward()
    assert events.total("compile") == 0
    assert graphs() == {"forward": 1, "backward": 1}


def test_a_new_shape_compiles_again_and_an_old_one_does_not():
    function = compiled(lambda x: (x * 2).sum(0))
    counts = []
    for length in (96, 240, 480, 96, 240):
        x = torch.randn(1, length)
        torch.testing.assert_close(function(x.to("neuron")).cpu(), x[0] * 2)
        counts.append(
            sum(r["count"] for r in events.snapshot() if r["kind"] == "compile" and "model_default" in r["name"])
        )
    assert counts == [1, 2, 3, 3, 3]


def test_batch_norm_statistics_are_updated():
    reference = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    module = copy.deepcopy(reference).to("neuron")
    run = compiled(module, fullgraph=True)
    for _ in range(2):
        x = torch.randn(4, 2, 6, 6)
        torch.testing.assert_close(run(x.to("neuron")).cpu(), reference(x), rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(module[1].buffers(), reference[1].buffers()):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


def test_views_in_and_out_keep_their_aliasing():
    def function(x, y):
        x.add_(1)
        y[0].mul_(3)
        return x.t(), y[1:], x + y[:2]

    for make in (lambda: torch.arange(12.0).reshape(3, 4)[:2], lambda: torch.arange(12.0).reshape(4, 3).t()[:2]):
        host = (make(), torch.arange(16.0).reshape(4, 4)[1:4])
        device_bases = [h.clone() for h in host]
        device = [d.to("neuron") for d in device_bases]
        expected = function(*host)
        actual = compiled(function)(*device)
        for a, e in zip((*actual, *device), (*expected, *host)):
            assert torch.equal(a.cpu(), e)
        assert actual[0].untyped_storage() is device[0].untyped_storage()


def test_inputs_with_an_offset_or_other_strides_are_read_in_place():
    base = torch.randn(6, 8).to("neuron")
    function = compiled(lambda x: torch.relu(x) @ x.t())
    for view in (lambda b: b[2:5, 1:7], lambda b: b[:3, :6], lambda b: b.t()[:6, :3].t()):
        given = view(base)
        events.clear()
        result = function(given)
        assert [n.split("::")[0] for n in events.names("execute")] == ["graph"]
        torch.testing.assert_close(result.cpu(), view(base.cpu()).relu() @ view(base.cpu()).t())


def test_a_value_saved_before_its_input_is_overwritten_keeps_its_old_elements():
    def function(x, state):
        old = state.view(2, 2)
        y = (x * old).sum()
        state.add_(1)
        return y, old.t()

    host_state, device_state = torch.arange(4.0), torch.arange(4.0).to("neuron")
    expected = function(torch.ones(2, 2), host_state)
    actual = compiled(function)(torch.ones(2, 2, device="neuron"), device_state)
    assert actual[0].item() == expected[0].item()
    assert torch.equal(device_state.cpu(), host_state)
    assert torch.equal(actual[1].cpu(), expected[1])


def test_outputs_that_share_memory_with_each_other_and_with_inputs():
    weight = torch.randn(3, 3, requires_grad=True)
    device_weight = weight.detach().to("neuron").requires_grad_()

    def function(w, x):
        y = x @ w.t()
        return y, y[0], w

    y, row, same = compiled(function)(device_weight, torch.ones(2, 3, device="neuron"))
    assert same is device_weight or same.untyped_storage() is device_weight.untyped_storage()
    y2, row2, _ = function(weight, torch.ones(2, 3))
    torch.testing.assert_close(y.detach().cpu(), y2.detach())
    torch.testing.assert_close(row.detach().cpu(), row2.detach())
    (y.sum() + row.sum()).backward()
    (y2.sum() + row2.sum()).backward()
    torch.testing.assert_close(device_weight.grad.cpu(), weight.grad)


def test_python_scalars_and_control_flow():
    def function(x, factor, flag):
        return x * factor if flag else x - factor

    run = compiled(function)
    x = torch.arange(3.0)
    for factor, flag in ((2, True), (0.5, True), (0.5, False)):
        assert torch.equal(run(x.to("neuron"), factor, flag).cpu(), function(x, factor, flag))


def test_dropout_repeats_with_the_seed_and_differs_without():
    run = compiled(lambda x: nn.functional.dropout(x, 0.5))
    x = torch.ones(1000, device="neuron")
    torch.manual_seed(3)
    first, second = run(x), run(x)
    torch.manual_seed(3)
    assert torch.equal(run(x), first)
    assert not torch.equal(first, second)
    kept = (first != 0).float().mean().item()
    assert 0.4 < kept < 0.6
    assert set(first.unique().tolist()) == {0.0, 2.0}


def test_dropout_gradients_use_the_mask_of_the_forward_pass():
    x = torch.ones(64, device="neuron", requires_grad=True)
    y = compiled(lambda x: nn.functional.dropout(x, 0.25))(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_graph_breaks_run_between_graphs():
    seen = []

    def function(x):
        y = x * 2
        seen.append(y.sum().item())
        return y + 1

    assert compiled(function)(torch.ones(4, device="neuron")).tolist() == [3, 3, 3, 3]
    assert seen == [8.0]


@pytest.mark.filterwarnings("error:Dynamo does not know how to trace")
def test_dynamo_leaves_the_devices_own_frames_alone():
    def function(x):
        y = x * 3
        torch._dynamo.graph_break()
        return y.sum().item()

    assert compiled(function)(torch.ones(4, device="neuron")) == 12


def test_an_operator_without_a_lowering_warns_and_still_works():
    values = torch.randn(4, 4)

    def quantised(x):
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127).sum()

    with pytest.warns(UserWarning, match="splits graph .*fake_quantize"):
        result = compiled(quantised)(values.to("neuron"))
    torch.testing.assert_close(result.cpu(), quantised(values))
    assert fallbacks() == ["aten::fake_quantize_per_tensor_affine_cachemask"]


def test_cpu_tensors_given_to_a_graph_are_copied_over():
    result = compiled(lambda x: x + 1)(torch.ones(3))
    assert result.device.type == "neuron"
    assert result.tolist() == [2, 2, 2]


def test_constants_inside_the_function_become_part_of_the_program():
    run = compiled(lambda x: x + torch.tensor([10.0, 20.0, 30.0], device=x.device))
    assert run(torch.ones(3, device="neuron")).tolist() == [11, 21, 31]
    assert "inference" in graphs()


def test_inference_mode_and_no_grad():
    module = nn.Linear(3, 2).to("neuron")
    run = compiled(module)
    x = torch.randn(4, 3)
    for context in (torch.inference_mode, torch.no_grad):
        with context():
            torch.testing.assert_close(
                run(x.to("neuron")).cpu(), nn.functional.linear(x, module.weight.cpu(), module.bias.cpu())
            )
    assert graphs().get("inference", 0) >= 1


def test_unset_dynamic_behaves_as_static():
    function = torch.compile(lambda x: x + 1, backend="neuron")
    for length in (5, 6, 7):
        assert function(torch.zeros(length, device="neuron")).tolist() == [1.0] * length


def test_the_backend_is_listed():
    assert "neuron" in torch._dynamo.list_backends()
