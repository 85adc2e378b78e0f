"""Packages that have a list of devices of their own: what they do with this one, and what docs/clients.md says to write.

Where the first half of a test fails one day, that page has a row too many.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import packages
from .families import DECODERS

pytestmark = pytest.mark.skipif(
    bool(packages.usable("transformers") or packages.usable("accelerate")), reason="needs transformers and accelerate"
)
TOKENS = torch.arange(3, 12).unsqueeze(0)


def _model() -> Any:
    return DECODERS[0].build("sdpa", None, 1).eval()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder with a Llama of one layer in several files, and its logits on the CPU."""
    folder = tmp_path_factory.mktemp("checkpoint")
    model = _model()
    model.save_pretrained(folder, max_shard_size="10KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    with torch.no_grad():
        return folder, model(TOKENS).logits


def _loaded(folder: Any, **options: Any) -> tuple[Any, torch.Tensor]:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, **options)
    with torch.no_grad():
        return model, model(TOKENS.to(model.device), use_cache=False).logits.cpu()


def test_safetensors_does_not_take_the_device_s_name(tmp_path):
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file, save_file

    file = tmp_path / "a.safetensors"
    save_file({"a": torch.arange(4.0)}, file)
    with pytest.raises(SafetensorError, match="device neuron is invalid"):
        load_file(file, device="neuron")
    with safe_open(file, "pt", device=0) as opened:
        for found in (load_file(file, device=0)["a"], opened.get_tensor("a"), opened.get_slice("a")[0:4]):
            assert found.device == torch.device("neuron:0")
            assert torch.equal(found.cpu(), torch.arange(4.0))


@pytest.mark.parametrize("automatic", ["auto", "balanced"])
def test_device_maps_made_by_accelerate_know_no_memory_of_the_device(checkpoint, automatic):
    folder, expected = checkpoint
    model, _ = _loaded(folder, device_map=automatic)
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    for named in ("neuron", {"": 0}, torch.device("neuron")):
        model, found = _loaded(folder, device_map=named)
        assert {str(p.device) for p in model.parameters()} == {"neuron:0"}
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_layers_kept_on_disk_are_read_for_a_number(checkpoint, tmp_path):
    from safetensors import SafetensorError

    folder, expected = checkpoint
    parts = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
    named = {**dict.fromkeys(parts, "neuron"), "model.layers.0": "disk"}
    with pytest.raises(SafetensorError, match="device neuron is invalid"):
        _loaded(folder, device_map=named, offload_folder=tmp_path)
    for kept in ("disk", "cpu"):
        numbered = {**dict.fromkeys(parts, 0), "model.layers.0": kept}
        model, found = _loaded(folder, device_map=numbered, offload_folder=tmp_path)
        assert str(model.lm_head.weight.device) == "neuron:0"
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_pipeline_takes_the_device_when_it_is_named():
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline
    from transformers.utils import logging

    tokenizers = pytest.importorskip("tokenizers")
    logging.set_verbosity_error()
    vocabulary = {word: i for i, word in enumerate(("[PAD]", "[UNK]", "a", "b", "c"))}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokens = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    torch.manual_seed(0)
    config = BertConfig(vocab_size=5, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = BertForSequenceClassification(config).eval()

    def answers(**options: Any) -> tuple[str, list[Any]]:
        made = pipeline("text-classification", model, tokenizer=tokens, **options)
        return str(made.model.device), made(["a b c", "c"], batch_size=2)

    _, expected = answers(device="cpu")
    model.to("neuron")
    assert answers(device=-1)[0] == "neuron:0"  # where the model is
    for options in ({}, {"device": 0}):
        assert answers(**options)[0] == "cpu"  # a number is CUDA's, and without CUDA the CPU's
    where, found = answers(device="neuron")
    assert where == "neuron:0"
    for e, a in zip(expected, found, strict=True):
        assert (a["label"], a["score"]) == (e["label"], pytest.approx(e["score"], rel=1e-4))


def test_caches_of_tokens_in_the_host_s_memory_are_cuda_s():
    model, tokens = _model().to("neuron"), TOKENS.to("neuron")
    for kind in ("offloaded", "offloaded_static"):
        with pytest.raises(AssertionError, match="CUDA"):
            model.generate(tokens, max_new_tokens=2, cache_implementation=kind)


def test_mixed_precision_in_float16_is_refused_by_accelerate():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState

    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    with pytest.raises(ValueError, match=r"fp16 mixed precision requires a device in .* \(not 'neuron'\)"):
        Accelerator(mixed_precision="fp16")
    AcceleratorState._reset_state(True)
    PartialState._reset_state()


def test_a_tensor_of_the_device_is_no_data_of_one_on_the_cpu():
    """Why PEFT cannot compute an adapter's start on the device. ``.to("neuron")`` of the finished model keeps its parameters."""
    layer = torch.nn.Linear(2, 2)
    weight = layer.weight
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        weight.data = torch.ones(2, 2, device="neuron")
    assert layer.to("neuron").weight is weight
    assert str(weight.device) == "neuron:0"
