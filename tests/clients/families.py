"""Models of Hugging Face Transformers, each made of a configuration in code with random weights: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

VOCABULARY, WIDTH, INNER, HEADS, POSITIONS = 64, 32, 48, 4, 64
BATCH, LENGTH, PADDING = 2, 12, 4  # PADDING: positions without a token at the start of the second sequence

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_SIZES, "num_key_value_heads": HEADS // 2}


@dataclass(frozen=True)
class Family:
    """`config` takes the number of layers. `model` is the class; `attention` what it can be asked for, first the default.

    `experts` are the implementations of the experts of a mixture that one graph can hold, first the default.
    """

    name: str
    config: Callable[[int], Any]
    model: str = "AutoModelForCausalLM"
    inputs: str = "tokens"
    attention: tuple[str, ...] = ("sdpa", "eager", "flex_attention")
    experts: tuple[str, ...] = ()

    def build(self, attention: str, experts: str | None, layers: int) -> Any:
        """The model in training mode on the CPU, in float32, with the weights of seed 0."""
        torch.manual_seed(0)
        model = getattr(hf, self.model).from_config(self.config(layers), attn_implementation=attention)
        if self.model == "AutoModelForCausalLM":
            # Transformers guesses the loss from the class's name, and warns where it cannot: Dynamo refuses the warning.
            model.loss_type = "ForCausalLM"
        if experts is not None:
            model.set_experts_implementation(experts)
        return model.train()

    def batch(self, padded: bool) -> dict[str, torch.Tensor]:
        """One batch on the CPU, the same in every process; of `padded` tokens, the second row starts with padding."""
        generator = torch.Generator().manual_seed(1)
        if self.inputs == "pixels":
            return {
                "pixel_values": torch.randn(BATCH, 3, 16, 16, generator=generator),
                "labels": torch.tensor([1, 0]),
            }
        if self.inputs == "sound":
            return {
                "input_features": torch.randn(BATCH, 8, 2 * LENGTH, generator=generator),
                "labels": torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=generator),
            }
        tokens = torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=generator)
        if not padded:
            return {"input_ids": tokens, "labels": tokens.clone()}
        mask = torch.ones_like(tokens)
        mask[1, :PADDING] = 0
        tokens = torch.where(mask.bool(), tokens, 0)
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def _plain(kind: str, **more: Any) -> Callable[[int], Any]:
    return lambda layers: getattr(hf, kind)(**{**_SIZES, "num_hidden_layers": layers, **more})


def _grouped(kind: str, **more: Any) -> Callable[[int], Any]:
    return lambda layers: getattr(hf, kind)(**{**_GROUPED, "num_hidden_layers": layers, **more})


def _deepseek(kind: str, **more: Any) -> Callable[[int], Any]:
    return _grouped(
        kind,
        num_key_value_heads=HEADS,
        n_routed_experts=4,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=INNER,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        first_k_dense_replace=0,
        **more,
    )


def _gpt2(layers: int) -> Any:
    return hf.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=WIDTH,
        n_inner=INNER,
        n_layer=layers,
        n_head=HEADS,
        n_positions=POSITIONS,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


# The four that the device is held to in every mode; the tests of `make test` are samples of these.
DECODERS = (
    Family("llama", _grouped("LlamaConfig")),
    Family("qwen3", _grouped("Qwen3Config", head_dim=WIDTH // HEADS)),
    Family("gpt2", _gpt2, attention=("sdpa", "eager")),
    Family(
        "mixtral",
        _grouped("MixtralConfig", num_local_experts=4, num_experts_per_tok=2, output_router_logits=True),
        experts=("grouped_mm", "batched_mm"),
    ),
)

_DROPOUTS = ("dropout", "attention_dropout", "activation_dropout", "hidden_dropout", "hidden_dropout_prob")
_NO_DROPOUT = dict.fromkeys(
    (*_DROPOUTS, "attention_probs_dropout_prob", "embd_pdrop", "resid_pdrop", "dropout_rate"), 0.0
)


def _seq2seq(kind: str, **more: Any) -> Callable[[int], Any]:
    return lambda layers: getattr(hf, kind)(
        **{
            **_NO_DROPOUT,
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
            **more,
            **dict.fromkeys(("encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers"), layers),
        }
    )


_MASKED_LM, _BOTH = "AutoModelForMaskedLM", ("sdpa", "eager")
_EXPERTS = ("grouped_mm", "batched_mm")

# More of them, which `python -m tests.clients` runs as well.
OTHERS = (
    Family("qwen2", _grouped("Qwen2Config")),
    Family("gemma2", _grouped("Gemma2Config", head_dim=8, sliding_window=8), attention=("eager",)),
    Family("gemma3", _grouped("Gemma3TextConfig", head_dim=8, sliding_window=8)),
    Family("phi3", _grouped("Phi3Config", **_NO_DROPOUT)),
    Family("olmo2", _grouped("Olmo2Config")),
    Family("granite", _grouped("GraniteConfig")),
    Family("gpt_neox", _plain("GPTNeoXConfig", **_NO_DROPOUT)),
    Family("falcon", _plain("FalconConfig", **_NO_DROPOUT), attention=_BOTH),
    Family("bloom", _plain("BloomConfig", n_head=HEADS, **_NO_DROPOUT), attention=("eager",)),
    Family("opt", _plain("OPTConfig", ffn_dim=INNER, word_embed_proj_dim=WIDTH, **_NO_DROPOUT), attention=_BOTH),
    Family(
        "qwen3_moe",
        _grouped("Qwen3MoeConfig", head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=INNER),
        experts=_EXPERTS,
    ),
    Family(
        "deepseek_v2", _deepseek("DeepseekV2Config", n_group=1, q_lora_rank=None), attention=_BOTH, experts=_EXPERTS
    ),
    Family("deepseek_v3", _deepseek("DeepseekV3Config", n_group=2, q_lora_rank=16), attention=_BOTH, experts=_EXPERTS),
    Family(
        "gpt_oss",
        _grouped("GptOssConfig", head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=8),
        attention=("eager",),
        experts=_EXPERTS,
    ),
    Family(
        "mamba2",
        lambda layers: hf.Mamba2Config(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=layers,
            num_heads=8,
            head_dim=8,
            state_size=8,
            n_groups=1,
            chunk_size=4,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        attention=("eager",),
    ),
    Family("bert", _plain("BertConfig", **_NO_DROPOUT), _MASKED_LM, attention=_BOTH),
    Family(
        "modernbert",
        _plain("ModernBertConfig", local_attention=8, cls_token_id=1, sep_token_id=2),
        _MASKED_LM,
        attention=_BOTH,
    ),
    Family(
        "t5", _seq2seq("T5Config", d_kv=8, d_ff=INNER, num_heads=HEADS), "AutoModelForSeq2SeqLM", attention=("eager",)
    ),
    Family(
        "bart",
        _seq2seq(
            "BartConfig",
            encoder_ffn_dim=INNER,
            decoder_ffn_dim=INNER,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            max_position_embeddings=POSITIONS,
        ),
        "AutoModelForSeq2SeqLM",
        attention=_BOTH,
    ),
    Family(
        "whisper",
        _seq2seq(
            "WhisperConfig",
            num_mel_bins=8,
            encoder_ffn_dim=INNER,
            decoder_ffn_dim=INNER,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            max_source_positions=LENGTH,
            max_target_positions=POSITIONS,
        ),
        "AutoModelForSpeechSeq2Seq",
        inputs="sound",
        attention=_BOTH,
    ),
    Family(
        "vit",
        lambda layers: hf.ViTConfig(
            hidden_size=WIDTH,
            num_hidden_layers=layers,
            num_attention_heads=HEADS,
            intermediate_size=INNER,
            image_size=16,
            patch_size=4,
            **_NO_DROPOUT,
        ),
        "AutoModelForImageClassification",
        inputs="pixels",
        attention=_BOTH,
    ),
)
