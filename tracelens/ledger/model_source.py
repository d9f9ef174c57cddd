"""Where a model comes from: the name of a preset, a Hugging Face `config.json`, or a TOML file."""

from __future__ import annotations

import difflib
import json
import tomllib
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from tracelens.errors import InputError, ModelError
from tracelens.ledger.huggingface import model_from_config
from tracelens.ledger.model import ModelSpec

_PRESETS = resources.files("tracelens.ledger") / "presets"
_CONFIG = "give the config.json of a model on Hugging Face, or a TOML file (docs/predict.md shows one)"


def list_presets() -> tuple[str, ...]:
    """The names of all presets, sorted."""
    names = (entry.name for entry in _PRESETS.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


@lru_cache(maxsize=64)
def load_preset(name: str) -> ModelSpec:
    """The preset of that name.

    Raises:
        ModelError: for a name that is none.
    """
    entry = _PRESETS / f"{name}.toml"
    if not entry.is_file():
        presets = list_presets()
        close = difflib.get_close_matches(name, presets, n=3) or presets
        raise ModelError(
            f"no model preset `{name}`",
            hint=f"such as: {', '.join(close)}; or give a config.json or a TOML file",
        )
    return _model_from_toml(entry.read_text(encoding="utf-8"), where=f"preset {name}", name=name)


def load_model(source: str) -> ModelSpec:
    """The model behind `--model`: a preset's name, or the path of a `config.json` or TOML file.

    Raises:
        ModelError: for an unknown preset or a model that can't be.
        InputError: for a file that can't be read.
    """
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix not in (".json", ".toml"):
        return load_preset(source.lower())
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read model file {path}: {error}") from error
    if path.suffix == ".toml":
        return _model_from_toml(text, where=str(path), name=path.stem)
    return model_from_config(_json_object(text, path), name=path.stem if path.stem != "config" else "config")


def _model_from_toml(text: str, *, where: str, name: str) -> ModelSpec:
    try:
        fields: dict[str, Any] = {"name": name} | tomllib.loads(text)
        return msgspec.convert(fields, ModelSpec)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is no TOML file: {error}", hint="docs/predict.md shows one") from error
    except msgspec.ValidationError as error:
        known = ", ".join(ModelSpec.__struct_fields__)
        raise ModelError(f"{where}: {error}", hint=f"fields of a model: {known}") from error


def _json_object(text: str, path: Path) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is no JSON file: {error}", hint=_CONFIG) from error
    if not isinstance(config, dict):
        raise InputError(f"{path} holds no JSON object", hint=_CONFIG)
    return config
