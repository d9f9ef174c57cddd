"""The frame of every page: no network, light and dark, every string from outside escaped.

Jinja2 is imported when a page is rendered, and no sooner.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from tracelens.report.table import printable

if TYPE_CHECKING:
    from jinja2 import Environment


def render_page(template: str, **parts: Any) -> str:
    """A page that needs nothing beside itself.

    Args:
        template: a file of `templates` that extends `page.html.jinja`.
        parts: what it shows; the frame itself takes `version` and `tiles`.
    """
    style, script = _asset("report.css"), _asset("report.js")
    page = _environment().get_template(template)
    return page.render(style=_trusted(style), script=_trusted(script), policy=_policy(style, script), **parts)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("tracelens.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_written_out,
    )


def _written_out(value: Any) -> Any:
    """A name without what steers a terminal, turns the direction of text, or is a command to a CI runner."""
    from markupsafe import Markup, escape

    if type(value) is not str:  # `Markup` is ours and stays as it is
        return value
    return Markup(str(escape(printable(value))).replace("##[", "&#35;#["))


def _asset(name: str) -> str:
    return resources.files("tracelens.report").joinpath("templates", name).read_text(encoding="utf-8")


def _trusted(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


def _policy(style: str, script: str) -> str:
    """A content security policy under which nothing but our own style and script has any effect."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
