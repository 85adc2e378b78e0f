"""Every public name of ``torch.neuron`` and ``torch_neuronx``: documented, with a signature, copied and let go."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref

import pytest
import torch

import torch_neuronx

MODULES = (
    torch_neuronx,
    torch_neuronx.metrics,
    torch_neuronx.neuron_dynamo_backend,
    torch_neuronx.profiling,
    torch_neuronx.utils,
    torch.neuron.memory,
)


def public():
    named = [(f"{m.__name__}.{n}", getattr(m, n)) for m in MODULES for n in m.__all__]
    owned = [
        (f"{m.__name__}.{n}", v)
        for m in (torch.neuron, torch.neuron.adaptive)
        for n, v in vars(m).items()
        if not n.startswith("_") and getattr(v, "__module__", "").startswith("shakedown.")
    ]
    return {name: value for name, value in named + owned if callable(value)}


@pytest.mark.parametrize("name", sorted(public()))
def test_it_has_a_signature_and_a_docstring(name):
    value = public()[name]
    assert inspect.getdoc(value)
    if not (isinstance(value, type) and issubclass(value, Exception)):  # which take what exceptions take
        inspect.signature(value)


def test_a_name_that_is_not_there_is_an_error_in_the_users_words():
    with pytest.raises(AttributeError, match=r"module 'torch\.neuron' has no attribute 'nvtx'"):
        torch.neuron.nvtx
    assert not hasattr(torch.neuron, "__wrapped__")


def test_plain_values_are_copied_and_pickled():
    properties, place = torch.neuron.get_device_properties(), torch.neuron.device(0)
    generator = torch.Generator(device="neuron").manual_seed(3)
    for again in (pickle.loads(pickle.dumps(properties)), copy.deepcopy(properties)):
        assert again == properties
    with pickle.loads(pickle.dumps(place)), copy.copy(place):
        assert torch.neuron.current_device() == 0
    assert torch.equal(pickle.loads(pickle.dumps(generator)).get_state(), generator.get_state())


@pytest.mark.parametrize("make", [torch.neuron.Stream, torch.neuron.Event])
def test_streams_and_events_are_let_go_and_cannot_be_pickled_as_cudas(make):
    made = make()
    made.of_the_user = 1
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(made)
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None


def test_a_stream_is_current_again_when_a_generator_inside_it_is_dropped():
    def batches():
        with torch.neuron.stream(torch.neuron.Stream()):
            yield torch.neuron.current_stream().stream_id
            yield None

    loader = batches()
    assert next(loader) != 0
    del loader
    gc.collect()
    assert torch.neuron.current_stream().stream_id == 0
