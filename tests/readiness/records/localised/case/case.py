"""aten::gelu on neuron

From tiny, eager-float32-cold, case 2x8, step 1.
aten::gelu is the first wrong operator of the forward pass, in the model itself (Tiny), call 0, tiny.py:33: relative L2 error 2.00e-03, allowed 1.65e-06: values are uniformly scaled by 1.002000
output: relative L2 error 2.00e-03, allowed 6.74e-07: values are uniformly scaled by 1.002000

python case.py                 exits 1 where it differs from float64, 0 where it does not
DEVICE=cpu python case.py      the same on another device
"""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

DEVICE = os.environ.get("DEVICE", "neuron")
ON_HOST = []  # tensors that stay on the CPU
STRIDES = {}  # of tensors whose memory order is not their shape's
LIMITS = {"output": 1.651812369889142e-06}  # relative L2 error that rounding explains


def run(t, device, float64):
    r = torch.ops.aten.gelu.default(t["self"])
    return {"output": r}


tensors = load_file(Path(__file__).with_name("tensors.safetensors"))
for name, stride in STRIDES.items():
    tensors[name] = torch.empty_strided(tensors[name].shape, stride, dtype=tensors[name].dtype).copy_(tensors[name])
wide = {torch.complex64: torch.complex128}
exact = {n: v.to(wide.get(v.dtype, torch.float64 if v.is_floating_point() else v.dtype), copy=True) for n, v in tensors.items()}
given = {n: v.clone() if n in ON_HOST else v.to(DEVICE) for n, v in tensors.items()}
with torch.no_grad():
    truth = run(exact, "cpu", True)
    made = run(given, DEVICE, False)
wrong = False
for name, right in truth.items():
    got = made[name].cpu()
    if got.shape != right.shape:
        print(f"{name}: shape {tuple(got.shape)}, not {tuple(right.shape)}")
        wrong = True
        continue
    got, right = got.to(torch.float64), right.to(torch.float64)
    finite = got.isfinite() & right.isfinite()
    odd = int((got.isfinite() != right.isfinite()).sum())
    error = torch.where(finite, got - right, 0.0).norm() / max(float(torch.where(finite, right, 0.0).norm()), 1e-300)
    print(f"{name}: relative L2 error {error:.3e}, at most {LIMITS[name]:.1e}; {odd} values finite on one side only")
    wrong |= bool(error > LIMITS[name]) or odd > 1000000000
sys.exit(int(wrong))
