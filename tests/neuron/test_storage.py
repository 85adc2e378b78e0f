"""No call on a storage may crash the interpreter: there is no C++ allocator behind it."""

from __future__ import annotations

import subprocess
import sys
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


def test_a_transfer_leaves_both_sides_resizable():
    """``numpy()`` would not: it marks the memory of the tensor that it is called on."""
    host = torch.tensor([1.0, 2.0])
    back = host.to("neuron").cpu()
    assert host.resize_(5).tolist()[:2] == back.resize_(5).tolist()[:2] == [1.0, 2.0]
