"""``compile_step``: forward, backward and update as one program, against the same steps by PyTorch on the CPU."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shakedown.neuron import compile_step, events
from shakedown.neuron.errors import UnsupportedStep

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.rotating(2, least=3)]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def loss_of(model, x, y):
    return F.mse_loss(model(x), y)


def batches(count, rows=5):
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randn(rows, n, generator=generator) for n in (3, 2)) for _ in range(count)]


def both(make=Small):
    """The same model on the CPU and on the device."""
    torch.manual_seed(0)
    host = make()
    return host, copy.deepcopy(host).to("neuron")


def on_host(model, optimizer, batch, loss_fn=loss_of, before_update=None):
    optimizer.zero_grad()
    loss = loss_fn(model, *batch)
    loss.backward()
    if before_update is not None:
        before_update(list(model.parameters()))
    optimizer.step()
    return loss.detach()


def moved(batch):
    return tuple(t.to("neuron") for t in batch)


def assert_same(device, host, **tolerance):
    for (name, ours), theirs in zip(device.state_dict().items(), host.state_dict().values(), strict=True):
        torch.testing.assert_close(
            ours.cpu(), theirs, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}), msg=lambda m, n=name: f"{n}: {m}"
        )


def compiles() -> int:
    return events.total("compile")


def steps_run() -> int:
    return sum(r["count"] for r in events.snapshot() if r["kind"] == "execute" and r["name"].startswith("graph::"))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
    "adam amsgrad single": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=False, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True, maximize=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_what_pytorch_does_on_the_cpu(name):
    host, device = both()
    theirs, ours = OPTIMIZERS[name](host.parameters()), OPTIMIZERS[name](device.parameters())
    step = compile_step(device, loss_of, ours)
    events.clear()
    for batch in batches(3):
        loss = step(*moved(batch))
        assert loss.shape == ()
        assert not loss.requires_grad
        assert loss.device.type == "neuron"
        torch.testing.assert_close(loss.cpu(), on_host(host, theirs, batch), rtol=1e-5, atol=1e-6)
    assert_same(device, host)
    assert steps_run() == 3
    assert not events.names("fallback")
    assert all(p.grad is None for p in device.parameters())
    states, expected = ours.state_dict()["state"], theirs.state_dict()["state"]
    assert states.keys() == expected.keys()
    for number, state in states.items():
        assert state.keys() == expected[number].keys()
        for key, value in state.items():
            torch.testing.assert_close(value.cpu(), expected[number][key], rtol=1e-5, atol=1e-6)


def test_capturable_optimizers_keep_their_steps_on_the_device():
    host, device = both()
    theirs = torch.optim.AdamW(host.parameters(), lr=0.01)
    ours = torch.optim.AdamW(device.parameters(), lr=torch.tensor(0.01, device="neuron"), capturable=True)
    step = compile_step(device, loss_of, ours)
    for batch in batches(3):
        step(*moved(batch))
        on_host(host, theirs, batch)
    assert_same(
        device, host, rtol=1e-4, atol=1e-5
    )  # bias corrections in float32, as PyTorch's capturable form has them
    steps = [s["step"] for s in ours.state.values()]
    assert {s.device.type for s in steps} == {"neuron"}
    assert {s.item() for s in steps} == {3.0}


def test_a_schedule_compiles_nothing_new():
    host, device = both()
    make = lambda p: torch.optim.AdamW(p, lr=0.01)  # noqa: E731
    theirs, ours = make(host.parameters()), make(device.parameters())
    schedules = [torch.optim.lr_scheduler.OneCycleLR(o, 0.05, total_steps=9) for o in (theirs, ours)]
    step = compile_step(device, loss_of, ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scheduler warns when it thinks that no optimizer stepped
        for number, batch in enumerate(batches(6)):
            if number == 2:  # by now it is known that the first beta changes, too
                events.clear()
            step(*moved(batch))
            on_host(host, theirs, batch)
            for schedule in schedules:
                schedule.step()
    assert [r["name"] for r in events.snapshot() if r["kind"] == "compile" and "step" in r["name"]] == []
    assert_same(device, host)


def test_clipping_and_a_hook_are_part_of_the_step():
    for options in (
        {"clip_grad_norm": 0.05},
        {"before_update": lambda parameters: [p.grad.clamp_(-0.01, 0.01) for p in parameters]},
    ):
        host, device = both()
        theirs, ours = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (host, device))
        step = compile_step(device, loss_of, ours, **options)
        hook = options.get("before_update", lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.05))
        for batch in batches(2):
            step(*moved(batch))
            on_host(host, theirs, batch, before_update=hook)
        assert_same(device, host)


def test_calls_that_share_an_update():
    host, device = both()
    theirs, ours = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (host, device))
    step = compile_step(device, loss_of, ours, accumulate=3)
    before = copy.deepcopy(host.state_dict())
    for number, batch in enumerate(batches(6)):
        if number % 3 == 0:
            theirs.zero_grad()
        loss = loss_of(host, *batch)
        (loss / 3).backward()
        torch.testing.assert_close(step(*moved(batch)).cpu(), loss.detach(), rtol=1e-5, atol=1e-6)
        if number % 3 != 2:
            torch.testing.assert_close(device.first.weight.grad.cpu(), host.first.weight.grad, rtol=1e-5, atol=1e-6)
            if number < 2:
                assert all(torch.equal(v.cpu(), before[k]) for k, v in device.state_dict().items())
        else:
            theirs.step()
            assert device.first.weight.grad is None
            assert_same(device, host)


def test_gradients_that_are_there_already_are_added_to_and_those_kept_are_not():
    host, device = both()
    theirs, ours = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (host, device))
    (first, second) = batches(2)
    for model, batch in ((host, first), (device, moved(first))):
        loss_of(model, *batch).backward()
    step = compile_step(device, loss_of, ours, keep_gradients=True)
    loss_of(host, *second).backward()
    theirs.step()
    step(*moved(second))
    assert_same(device, host)
    torch.testing.assert_close(device.second.bias.grad.cpu(), host.second.bias.grad)
    on_host(host, theirs, first)
    step(*moved(first))
    assert_same(device, host)
    torch.testing.assert_close(device.second.bias.grad.cpu(), host.second.bias.grad)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.outer(F.dropout(self.norm(self.inner(x)), 0.0, self.training))


def test_buffers_are_updated_and_eval_between_steps_is_noticed():
    host, device = both(Normed)
    theirs, ours = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (host, device))
    step = compile_step(device, loss_of, ours)
    for number, batch in enumerate(batches(4)):
        for model in (host, device):
            model.train(number != 2)
        step(*moved(batch))
        on_host(host, theirs, batch)
        assert_same(device, host)
    assert device.norm.num_batches_tracked.item() == 3


def test_autocast():
    def mixed(device):
        def loss(model, x, y):
            with torch.autocast(device, dtype=torch.bfloat16):
                return F.mse_loss(model(x).float(), y)

        return loss

    host, device = both()
    theirs, ours = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in (host, device))
    step = compile_step(device, mixed("neuron"), ours)
    for batch in batches(2):
        torch.testing.assert_close(
            step(*moved(batch)).cpu(), on_host(host, theirs, batch, mixed("cpu")), rtol=2e-2, atol=2e-2
        )
    assert device.first.weight.dtype is torch.float32
    assert_same(device, host, rtol=2e-2, atol=2e-2)


def test_dropout_advances_with_each_step_and_repeats_with_the_seed():
    weight = nn.Parameter(torch.ones(64, device="neuron"))
    model = nn.ParameterList([weight])
    optimizer = torch.optim.SGD([weight], lr=1.0)
    step = compile_step(model, lambda m, x: F.dropout(m[0] * x, 0.5).sum(), optimizer, keep_gradients=True)
    masks = []
    for seed in (3, None, 3):
        if seed is not None:
            torch.manual_seed(seed)
        step(torch.ones(64, device="neuron"))
        masks.append(weight.grad.cpu())
    assert set(masks[0].tolist()) == {0.0, 2.0}
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head, self.frozen = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False), nn.Linear(4, 4)
        self.unused = nn.Parameter(torch.ones(3))
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)

    def forward(self, ids):
        return self.head(self.frozen(self.embed(ids)))


def token_loss(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def test_tied_frozen_and_unused_parameters_in_several_groups():
    host, device = both(Tied)

    def make(model):
        return torch.optim.AdamW(
            [{"params": [model.embed.weight], "lr": 0.1}, {"params": [model.unused, *model.frozen.parameters()]}],
            lr=0.01,
        )

    theirs, ours = make(host), make(device)
    step = compile_step(device, token_loss, ours)
    ids = torch.randint(0, 7, (2, 5))
    for _ in range(2):
        on_host(host, theirs, (ids,), token_loss)
        step(ids.to("neuron"))
    assert device.head.weight is device.embed.weight
    assert_same(device, host)
    assert ours.state_dict()["state"].keys() == theirs.state_dict()["state"].keys() == {0}


def test_whoever_holds_a_weight_keeps_its_elements():
    host, device = both()
    optimizer = torch.optim.Adam(device.parameters(), lr=0.1)
    step = compile_step(device, loss_of, optimizer)
    batch = moved(batches(1)[0])
    average, copied, detached = copy.deepcopy(device), device.first.weight.detach().clone(), device.second.bias.detach()
    row, old = device.first.weight[1], device.first.weight.cpu()
    for _ in range(2):  # the first step meets what is shared, the second what the first one made
        step(*batch)
        saved = copy.deepcopy(optimizer.state_dict())
    assert torch.equal(average.first.weight.cpu(), host.first.weight)
    assert torch.equal(copied.cpu(), old)
    assert torch.equal(row.cpu(), device.first.weight[1].cpu())
    assert not torch.equal(row.cpu(), old[1])
    assert torch.equal(detached.cpu(), device.second.bias.cpu())
    kept = saved["state"][0]["exp_avg"].cpu()
    step(*batch)
    assert torch.equal(saved["state"][0]["exp_avg"].cpu(), kept)
    output = device(batch[0]).sum()
    step(*batch)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward()


def test_parameters_that_are_views_of_one_vector():
    flat = torch.linspace(-1, 1, 8)
    host = nn.ParameterList([nn.Parameter(flat[:4].clone()), nn.Parameter(flat[4:].clone())])
    vector = flat.to("neuron")
    device = nn.ParameterList([nn.Parameter(vector[:4]), nn.Parameter(vector[4:])])
    loss = lambda m, x: (m[0] * x).sum() * m[1].square().sum()  # noqa: E731
    theirs, ours = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (host, device))
    step = compile_step(device, loss, ours)
    for _ in range(2):
        on_host(host, theirs, (torch.ones(4),), loss)
        step(torch.ones(4, device="neuron"))
    assert_same(device, host)
    torch.testing.assert_close(vector.cpu(), torch.cat([p.detach() for p in host]), rtol=1e-5, atol=1e-6)


def test_an_error_leaves_model_and_optimizer_as_they_were():
    _, device = both(Tied)
    optimizer = torch.optim.Adam([device.embed.weight], lr=0.1)
    step = compile_step(device, token_loss, optimizer)
    ids = torch.randint(0, 7, (2, 5))
    for wrong in (ids.clone().fill_(9), ids):
        before, state = copy.deepcopy(device.state_dict()), copy.deepcopy(optimizer.state_dict())
        if wrong is ids:
            step(ids.to("neuron"))
            continue
        for _ in range(2):
            with pytest.raises(IndexError, match="out of range|out of bounds"):
                step(wrong.to("neuron"))
        assert all(torch.equal(v.cpu(), before[k].cpu()) for k, v in device.state_dict().items())
        for key, value in optimizer.state_dict()["state"].get(0, {}).items():
            assert not value.any() if not state["state"] else torch.equal(value.cpu(), state["state"][0][key].cpu())
    assert optimizer.state[device.embed.weight]["step"].item() == 1


def test_a_state_that_is_loaded_between_steps_counts():
    host, device = both()
    theirs, ours = (torch.optim.Adam(m.parameters(), lr=0.05) for m in (host, device))
    step = compile_step(device, loss_of, ours)
    data = batches(4)
    for number, batch in enumerate(data):
        step(*moved(batch))
        on_host(host, theirs, batch)
        if number == 0:
            saved = [
                (copy.deepcopy(m.state_dict()), copy.deepcopy(o.state_dict()))
                for m, o in ((host, theirs), (device, ours))
            ]
        if number == 2:
            for (weights, state), m, o in zip(saved, (host, device), (theirs, ours)):
                m.load_state_dict(weights)
                o.load_state_dict(state)
            events.clear()
    assert [n for n in events.names("compile") if "step" in n] == []
    assert_same(device, host)
    assert ours.state[device.first.bias]["step"].item() == 2


def test_each_shape_has_a_program_up_to_a_bound():
    _, device = both()
    step = compile_step(device, loss_of, torch.optim.SGD(device.parameters(), lr=0.1), max_programs=2)
    for rows in (2, 3, 2):
        step(*moved(batches(1, rows)[0]))
    assert step.captured == 2
    with pytest.raises(UnsupportedStep, match="max_programs is 2: pad the batches .*bucketed"):
        step(*moved(batches(1, 4)[0]))


def test_a_model_may_return_its_loss():
    class Output:
        def __init__(self, loss, logits):
            self.loss, self.logits = loss, logits

    class WithLoss(Small):
        def forward(self, x, y):  # type: ignore[override]  # as Transformers' models do
            return Output(F.mse_loss(super().forward(x), y), None)

    _, device = both(WithLoss)
    step = compile_step(device, None, torch.optim.SGD(device.parameters(), lr=0.1))
    x, y = moved(batches(1)[0])
    first = step(x, y=y).item()
    assert step(x, y=y).item() < first
    pair = compile_step(device, lambda m, x, y: (m(x, y).loss, x.sum(0)), torch.optim.SGD(device.parameters(), lr=0.1))
    _, sums = pair(x, y)
    torch.testing.assert_close(sums.cpu(), x.cpu().sum(0))


class Counting(torch.optim.SGD):
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p]["count"] = self.state[p].get("count", 0) + 1
        return super().step(closure)


def test_what_cannot_be_one_program_is_refused_with_an_alternative():
    _, device = both()
    batch = moved(batches(1)[0])
    sgd = torch.optim.SGD(device.parameters(), lr=0.1)
    before = copy.deepcopy(device.state_dict())
    with pytest.raises(UnsupportedStep, match="needs a closure.*compile the loss alone"):
        compile_step(device, loss_of, torch.optim.LBFGS(device.parameters()))
    with pytest.raises(UnsupportedStep, match="captured as one graph.*allows graph breaks"):
        compile_step(device, lambda m, x, y: m(x).sum() if m(x).sum() > 0 else m(x).mean(), sgd)(*batch)
    with pytest.raises(UnsupportedStep, match="loss of one element.*sizes \\[5, 2\\]"):
        compile_step(device, lambda m, x, y: m(x), sgd)(*batch)
    table = nn.Embedding(5, 2, sparse=True).to("neuron")
    ids = torch.tensor([1, 2], device="neuron")
    with pytest.raises(UnsupportedStep, match="sparse=False"):
        compile_step(table, lambda m, i: m(i).sum(), torch.optim.SGD(table.parameters(), lr=0.1))(ids)
    with pytest.raises(UnsupportedStep, match="'count' in its state.*0-d tensor"):
        compile_step(device, loss_of, Counting(device.parameters(), lr=0.1))(*batch)
    with pytest.raises(UnsupportedStep, match="capturable=True"):
        compile_step(device, loss_of, torch.optim.RAdam(device.parameters()))(*batch)
    handle = device.first.weight.register_hook(lambda grad: grad * 2)
    with pytest.raises(UnsupportedStep, match="has a hook on its gradient.*before_update"):
        compile_step(device, loss_of, sgd)(*batch)
    handle.remove()
    host = Small()
    with pytest.raises(UnsupportedStep, match="is on cpu: move the model"):
        compile_step(host, loss_of, torch.optim.SGD(host.parameters(), lr=0.1))(*batches(1)[0])
    with pytest.raises(RuntimeError, match="gradients, and they are off"), torch.no_grad():
        compile_step(device, loss_of, sgd)(*batch)
    with pytest.raises(TypeError, match="torch.optim.Optimizer"):
        compile_step(device, loss_of, object())
    assert all(torch.equal(v.cpu(), before[k].cpu()) for k, v in device.state_dict().items())
