"""No call on a storage may crash the interpreter: there is no C++ allocator behind it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch


def test_no_storage_call_crashes(tmp_path):
    script = Path(__file__).with_name("storage_calls.py")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=1500
    )
    last = (run.stdout.splitlines() or ["nothing ran"])[-1]
    assert run.returncode == 0, f"crashed with status {run.returncode} at: {last}"
    assert last.startswith("survived"), last
    assert int(last.split()[1]) > 500


def test_storages_can_be_made_cloned_and_moved():
    made = torch.UntypedStorage(8, device="neuron")
    assert (made.nbytes(), made.device.type) == (8, "neuron")
    tensor = torch.arange(4, dtype=torch.int16).to("neuron")
    clone = tensor.untyped_storage().clone()
    tensor.fill_(9)
    assert list(clone.cpu()) == [0, 0, 1, 0, 2, 0, 3, 0]
    moved = torch.UntypedStorage([1, 2, 3], device="neuron")
    assert list(moved.cpu()) == [1, 2, 3]


def test_refusals_say_what_to_do():
    storage = torch.ones(2, device="neuron").untyped_storage()
    with pytest.raises(RuntimeError, match="resize a tensor instead"):
        storage.resize_(100)
    with pytest.raises(RuntimeError, match=r"call \.cpu\(\) on it first"):
        storage.byteswap(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_tensors_are_pickled_and_read_from_the_older_file_format(dtype, tmp_path):
    whole = torch.arange(6).to(dtype).reshape(2, 3).to("neuron")
    part = whole.t()[1:]
    for again in (pickle.loads(pickle.dumps(part)), copy.deepcopy(part)):
        assert (again.dtype, again.device, again.stride()) == (dtype, whole.device, part.stride())
        assert torch.equal(again.cpu(), part.cpu())
    torch.save({"whole": whole, "part": part}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    read = torch.load(tmp_path / "old.pt")
    read["whole"].fill_(1)
    assert torch.equal(read["part"].cpu(), torch.ones_like(part.cpu()))  # they share a storage, as they did
    assert torch.equal(torch.load(tmp_path / "old.pt", map_location="cpu")["part"], part.cpu())
    torch.save(whole.cpu(), tmp_path / "host.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(torch.load(tmp_path / "host.pt", map_location="neuron").cpu(), whole.cpu())


def test_modules_and_optimizers_are_pickled():
    module = torch.nn.Linear(2, 2).to("neuron")
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 2, device="neuron")).sum().backward()
    optimizer.step()
    again, state = pickle.loads(pickle.dumps((module, optimizer.state_dict())))
    assert torch.equal(again.weight.cpu(), module.weight.cpu())
    assert torch.equal(state["state"][0]["exp_avg"].cpu(), optimizer.state[module.weight]["exp_avg"].cpu())


def test_a_tensor_for_another_process_is_refused_and_the_message_says_what_to_do():
    with pytest.raises(RuntimeError, match=r"send tensor\.cpu\(\) to another process"):
        ForkingPickler.dumps(torch.ones(2, device="neuron"))


def test_a_transfer_leaves_both_sides_resizable():
    """``numpy()`` would not: it marks the memory of the tensor that it is called on."""
    host = torch.tensor([1.0, 2.0])
    back = host.to("neuron").cpu()
    assert host.resize_(5).tolist()[:2] == back.resize_(5).tolist()[:2] == [1.0, 2.0]
