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
from tracelens.fields import explain_fault
from tracelens.ledger.huggingface import model_from_config
from tracelens.ledger.model import ModelSpec

_PRESETS = resources.files("tracelens.ledger") / "presets"
_CONFIG = "give the config.json of a model on Hugging Face, or a TOML file (docs/predict.md shows one)"

_JSON_WORDS: dict[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


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
            f"no model preset `{name}`, and no file of that name",
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
    if source and path.is_dir():
        path = path / "config.json"
        if not path.exists():
            raise InputError(f"the folder `{source}` holds no config.json", hint=_CONFIG)
    if path.suffix in (".json", ".toml"):
        return _model_from_file(path)
    if source and path.exists():
        raise InputError(f"`{source}` is no model file: its name ends neither in .json nor in .toml", hint=_CONFIG)
    return load_preset(source.lower())


def _model_from_file(path: Path) -> ModelSpec:
    try:
        # some editors begin a file with a byte order mark
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read model file {path}: {error.strerror}", hint=_CONFIG) from error
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(f"{path} is no text: byte 0x{byte:02x} at offset {error.start}", hint=_CONFIG) from error
    if not text.strip():
        raise InputError(f"{path} is empty", hint=_CONFIG)
    if path.suffix == ".toml":
        return _model_from_toml(text, where=str(path), name=path.stem)
    return model_from_config(_json_object(text, path), name=path.stem)


def _model_from_toml(text: str, *, where: str, name: str) -> ModelSpec:
    try:
        fields: dict[str, Any] = {"name": name} | tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where} is no TOML file: {error}", hint="docs/predict.md shows one") from error
    try:
        return msgspec.convert(fields, ModelSpec)
    except msgspec.ValidationError as error:
        fault = explain_fault(error, ModelSpec, fields)
        raise ModelError(f"{where}: {fault.told}", hint=fault.hint or "docs/predict.md shows a model") from error


def _json_object(text: str, path: Path) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON file: {error}", hint=_CONFIG) from error
    if not isinstance(config, dict):
        raise InputError(f"{path} holds {_JSON_WORDS[type(config)]}, and a model is an object: {{...}}", hint=_CONFIG)
    return config
