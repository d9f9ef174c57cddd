"""A model is read from a preset, a Hugging Face config.json or a TOML file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tracelens.errors import InputError, ModelError, TraceLensError
from tracelens.ledger.huggingface import model_from_config
from tracelens.ledger.model_source import load_model, load_preset
from tracelens.ledger.parameters import count_parameters

LLAMA3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
GPT2 |= {"vocab_size": 50257}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 61,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (LLAMA3_8B, "llama3-8b"),
        (GPT2, "gpt2"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (DEEPSEEK_V3, "deepseek-v3"),
        (GPT_OSS, "gpt-oss-120b"),
    ],
)
def test_a_config_of_every_family_counts_as_its_preset(config: dict[str, Any], preset: str) -> None:
    model = model_from_config(config, name="x")

    assert count_parameters(model) == count_parameters(load_preset(preset))


def test_an_unknown_architecture_is_refused_with_the_fields_that_are_missing() -> None:
    config = {"model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "vocab_size": 32000}

    with pytest.raises(ModelError) as error:
        model_from_config(config, name="codestral")

    assert "unknown architecture `mamba2`" in error.value.message
    assert "heads, ffn, gated" in error.value.message
    assert "layers," not in error.value.message
    assert "llama" in (error.value.hint or "")


def test_a_known_architecture_that_lacks_a_field_names_it_as_the_file_would() -> None:
    config = {key: value for key, value in QWEN3_MOE.items() if key != "num_experts"}

    with pytest.raises(ModelError, match="num_local_experts or n_routed_experts or num_experts"):
        model_from_config(config, name="q")


def test_a_folder_stands_for_its_config_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA3_8B))

    assert load_model(str(tmp_path)).hidden == 4096


def test_a_toml_file_gives_the_fields_by_our_names(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text("layers = 2\nhidden = 64\nheads = 4\nffn = 128\nvocab = 1000\nseq_len = 32\n")

    model = load_model(str(file))

    # 2 · (4·64² + 3·64·128 + 2·64) + 64 + 2 · 1000 · 64
    assert (model.name, count_parameters(model).total) == ("tiny", 210_240)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("layers = ", InputError, "no TOML file"),
        ("layers = 2", ModelError, "hidden"),
        ("layers=2\nhidden=64\nheads=4\nffn=128\nvocab=9\nwidth=3", ModelError, "width"),
        ("layers=0\nhidden=64\nheads=4\nffn=128\nvocab=9", ModelError, "layers must be at least 1"),
        ("layers=2\nhidden=64\nheads=5\nffn=128\nvocab=9", ModelError, "heads 5"),
        ("layers=2\nhidden=64\nheads=4\nvocab=9", ModelError, "ffn is missing"),
    ],
)
def test_a_file_that_describes_no_model_says_why(
    tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    file = tmp_path / "model.toml"
    file.write_text(text)

    with pytest.raises(error, match=message):
        load_model(str(file))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"null", "config.json holds null, and a model is an object"),
        ("config.json", b"true", "holds true or false"),
        ("config.json", b"[1, 2]", "holds a list"),
        ("config.json", b"5", "holds a number"),
        ("config.json", b"1e400", "holds a number"),
        ("config.json", b'"llama"', "holds a string"),
        ("config.json", b"", "config.json is empty"),
        ("config.json", b" \n", "config.json is empty"),
        ("config.json", b'{"hidden_size": 4', "config.json is no JSON file"),
        ("config.json", b"[" * 100_000, "config.json is no JSON file"),
        ("config.json", b"9" * 5000, "config.json is no JSON file"),
        ("config.json", b"\x89PNG\r\n\x1a\n", "config.json is no text: byte 0x89 at offset 0"),
        ("config.json", b"{}", "no model_type"),
        ("config.json", b'{"model_type": null}', "no model_type"),
        ("model.toml", b"", "model.toml is empty"),
        ("model.toml", b"layers = 2\n\xff", "model.toml is no text: byte 0xff at offset 11"),
        ("model.toml", b"layers = " + b"[" * 100_000, "model.toml is no TOML file"),
        ("p.png", b"\x89PNG\r\n\x1a\n", "p.png` is no model file: its name ends neither in .json nor in .toml"),
        ("config.yaml", b"hidden_size: 4", "config.yaml` is no model file"),
        ("model", b"{}", "model` is no model file"),
    ],
)
def test_whatever_stands_in_a_file_that_is_no_model_the_message_says_what_and_where(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceLensError, match=re.escape(message)) as error:
        load_model(str(tmp_path / name))
    assert re.search(r"config\.json|docs/predict\.md|TOML file", error.value.hint or "")


@pytest.mark.parametrize("name", ["folder", "folder.json", "folder.toml"])
def test_a_folder_without_a_config_json_is_said_to_be_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"the folder `.*{name}` holds no config.json"):
        load_model(str(tmp_path / name))


@pytest.mark.parametrize("value", ['"64"', "[64]", '{"a": 64}', "64.5", "true", "1e400"])
@pytest.mark.parametrize("key", ["hidden_size", "n_shared_experts", "kv_lora_rank", "q_lora_rank", "moe_layer_freq"])
def test_a_field_that_is_no_whole_number_is_named_with_its_value(tmp_path: Path, key: str, value: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(DEEPSEEK_V3 | {key: "HERE"}).replace('"HERE"', value))
    with pytest.raises(ModelError, match=f"model `config`: {key} is `") as error:
        load_model(str(file))
    assert error.value.hint == "these fields take a whole number"


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA3_8B).encode())
    assert load_model(str(file)).hidden == 4096


def test_a_misspelt_preset_is_answered_with_near_names() -> None:
    with pytest.raises(ModelError) as error:
        load_model("llama3-70")

    assert "llama3-70b" in (error.value.hint or "")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"nowhere\.json"):
        load_model("nowhere.json")
