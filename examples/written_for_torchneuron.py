"""A script as one writes it for TorchNeuron: nothing in it knows of this package.

python examples/written_for_torchneuron.py
"""

import torch
from torch import nn
from torch_neuronx.profiling import NeuronConfig, ProfileMode

import torch_neuronx


def train(steps: int = 6) -> list[float]:
    torch.manual_seed(0)
    device = torch.device("neuron", torch_neuronx.current_device())
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(32, 16)
    y = x.sum(1, keepdim=True)
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    torch_neuronx.clear_op_tracking()
    torch_neuronx.reset_peak_memory_stats()
    begin, end = (torch_neuronx.Event(enable_timing=True) for _ in range(2))
    begin.record()
    losses = []
    for _ in range(steps):
        with torch.autocast("neuron", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    end.record()
    torch_neuronx.synchronize()
    print(f"{begin.elapsed_time(end):.1f} ms, fallbacks {torch_neuronx.get_fallback_ops()}")
    print(f"peak {torch_neuronx.max_memory_allocated()} bytes; {len(torch_neuronx.get_executed_ops())} operators")

    side = torch_neuronx.Stream()
    with torch_neuronx.stream(side), torch.no_grad():
        model.eval()
        prediction = model(x)
    torch_neuronx.current_stream().wait_stream(side)

    served = torch.compile(model, backend="neuron", fullgraph=True, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(served(x), prediction, rtol=1e-4, atol=1e-4)
    graphs = torch_neuronx.get_dynamo_metrics()
    print(f"{len(graphs)} graph of {graphs[-1].graph_node_count} operators")

    config = NeuronConfig(modes=[ProfileMode.DEVICE, ProfileMode.RUNTIME], profile_output_dir="./output")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities, experimental_config=config) as profiler:
        model(x)
        torch_neuronx.synchronize()
    print(profiler.key_averages().table(sort_by="self_device_time_total", row_limit=3))
    return [loss.item() for loss in losses]


if __name__ == "__main__":
    print("losses", [round(loss, 3) for loss in train()])
