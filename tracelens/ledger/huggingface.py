"""Hugging Face `config.json` to ModelSpec, with the field names that differ from family to family.

A family says what its configuration files leave unsaid (biases, gates, norms), read from the modelling files
of transformers 4.57 (`models/<model_type>/modeling_*.py`, `configuration_*.py` for the defaults).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from tracelens.errors import ModelError
from tracelens.ledger.model import LatentAttention, ModelSpec, MoE, Norm

# our field: the names that families give it, first match wins
FIELD_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab": ("vocab_size",),
    "kv_heads": ("num_key_value_heads", "n_kv_heads"),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "seq_len": ("max_position_embeddings", "n_positions"),
}
MOE_FIELD_NAMES: dict[str, tuple[str, ...]] = {
    "experts": ("num_local_experts", "n_routed_experts", "num_experts"),
    "top_k": ("num_experts_per_tok", "experts_per_token"),
    "ffn": ("moe_intermediate_size", "intermediate_size"),
}
_OTHER_NUMBERS = (
    "n_shared_experts",
    "shared_expert_intermediate_size",
    "first_k_dense_replace",
    "decoder_sparse_step",
    "moe_layer_freq",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
)
_SHOWN = 40
"""Characters of a wrong value that are shown."""
REQUIRED = ("layers", "hidden", "heads", "vocab", "ffn")


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration file of a family does not say."""

    fixed: dict[str, Any] = {}
    """ModelSpec fields that hold for every member."""
    tied_by_default: bool = False
    head_dim_is_free: bool = True
    """Whether `head_dim` in the file counts (it does not with latent attention)."""
    moe: bool = False
    moe_fixed: dict[str, Any] = {}


_GPT2 = {"gated": False, "norm": Norm.layernorm, "qkv_bias": True, "output_bias": True, "mlp_bias": True}
_SINKS = {"attention_sinks": True, "output_bias": True, "qkv_bias": True}

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "mixtral": Family(moe=True),
    "qwen2": Family(fixed={"qkv_bias": True}),
    "qwen2_moe": Family(fixed={"qkv_bias": True}, moe=True, moe_fixed={"shared_gate": True}),
    "qwen3": Family(fixed={"qk_norm": True}),
    "qwen3_moe": Family(fixed={"qk_norm": True}, moe=True),
    "deepseek_v2": Family(moe=True, head_dim_is_free=False),
    "deepseek_v3": Family(moe=True, head_dim_is_free=False),
    "gpt_oss": Family(fixed=_SINKS, moe=True, moe_fixed={"router_bias": True, "expert_bias": True}),
    "gpt2": Family(fixed=_GPT2, tied_by_default=True),
}


def model_from_config(config: Mapping[str, Any], *, name: str) -> ModelSpec:
    """The model that a Hugging Face configuration describes.

    Args:
        config: the content of `config.json`.
        name: what to call the model.

    Raises:
        ModelError: for an architecture that is not known or lacks fields; the message names them.
    """
    model_type = str(config.get("model_type") or "")
    family = FAMILIES.get(model_type)
    if family is None:
        raise _unknown_architecture(config, name, model_type)
    _check_numbers(config, name)
    fields = _first_found(config, FIELD_NAMES)
    if model_type == "gpt2" and fields.get("ffn") is None and "hidden" in fields:
        fields["ffn"] = 4 * fields["hidden"]
    missing = [field for field in REQUIRED if fields.get(field) is None]
    if missing:
        raise _missing_fields(name, model_type, missing)
    if not family.head_dim_is_free:
        fields.pop("head_dim", None)
    if model_type == "gpt2":
        fields["positions"] = fields.get("seq_len", 1024)
    fields["tied_embeddings"] = bool(config.get("tie_word_embeddings", family.tied_by_default))
    if model_type == "llama":
        bias = bool(config.get("attention_bias", False))
        fields |= {"qkv_bias": bias, "output_bias": bias, "mlp_bias": bool(config.get("mlp_bias", False))}
    if config.get("kv_lora_rank"):
        fields["latent"] = _latent_attention(config, name, model_type)
    if family.moe:
        fields["moe"] = _mixture(config, family, name, model_type)
    if model_type in ("mixtral", "gpt_oss"):
        fields["ffn"] = None
    return ModelSpec(name=name, **(fields | family.fixed))


def _check_numbers(config: Mapping[str, Any], name: str) -> None:
    """Refuse what is no whole number where one is needed; null is as if it were not there."""
    keys = [key for names in (*FIELD_NAMES.values(), *MOE_FIELD_NAMES.values()) for key in names]
    wrong = [
        f"{key} is `{json.dumps(config[key], default=str)[:_SHOWN]}`"
        for key in dict.fromkeys((*keys, *_OTHER_NUMBERS))
        if config.get(key) is not None and type(config[key]) is not int
    ]
    if wrong:
        raise ModelError(f"model `{name}`: {', '.join(wrong)}", hint="these fields take a whole number")


def _first_found(config: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, candidates in names.items():
        value = next((config[key] for key in candidates if config.get(key) is not None), None)
        if value is not None:
            found[field] = value
    return found


def _mixture(config: Mapping[str, Any], family: Family, name: str, model_type: str) -> MoE | None:
    fields = _first_found(config, MOE_FIELD_NAMES)
    missing = [field for field in MOE_FIELD_NAMES if field not in fields]
    if missing:
        raise _missing_fields(name, model_type, [f"moe.{field}" for field in missing])
    shared = config.get("shared_expert_intermediate_size")
    if config.get("n_shared_experts"):
        shared = config["n_shared_experts"] * fields["ffn"]
    if config.get("mlp_only_layers"):
        raise ModelError(
            f"model `{name}`: mlp_only_layers {config['mlp_only_layers']} is not supported",
            hint="write a TOML file with first_dense_layers and every",
        )
    return MoE(
        **(fields | family.moe_fixed),
        shared_ffn=shared or 0,
        first_dense_layers=config.get("first_k_dense_replace") or 0,
        every=config.get("decoder_sparse_step") or config.get("moe_layer_freq") or 1,
    )


def _latent_attention(config: Mapping[str, Any], name: str, model_type: str) -> LatentAttention:
    names = {
        "kv_rank": ("kv_lora_rank",),
        "rope_dim": ("qk_rope_head_dim",),
        "nope_dim": ("qk_nope_head_dim",),
        "value_dim": ("v_head_dim",),
    }
    fields = _first_found(config, names)
    missing = [candidates[0] for field, candidates in names.items() if field not in fields]
    if missing:
        raise _missing_fields(name, model_type, missing)
    return LatentAttention(q_rank=config.get("q_lora_rank"), **fields)


def _missing_fields(name: str, model_type: str, missing: list[str]) -> ModelError:
    names = FIELD_NAMES | {f"moe.{field}": candidates for field, candidates in MOE_FIELD_NAMES.items()}
    wanted = [f"{field} ({' or '.join(names.get(field, (field,)))})" for field in missing]
    return ModelError(f"model `{name}` of type `{model_type}` lacks fields: {', '.join(wanted)}")


def _unknown_architecture(config: Mapping[str, Any], name: str, model_type: str) -> ModelError:
    found = _first_found(config, FIELD_NAMES)
    missing = [field for field in REQUIRED if field not in found]
    unsaid = [*missing, "gated", "norm", "qkv_bias", "output_bias", "mlp_bias", "tied_embeddings", "moe"]
    return ModelError(
        f"model `{name}`: {f'unknown architecture `{model_type}`' if model_type else 'no model_type'}; "
        f"the file does not say (or not in words known here): {', '.join(unsaid)}",
        hint=f"write a TOML file with these fields; known architectures: {', '.join(sorted(FAMILIES))}",
    )
