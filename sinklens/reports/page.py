"""What every page has: everything inline, nothing loaded, plotly.js once, text that cannot become markup."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

_TEMPLATES = files("sinklens.reports") / "templates"


def render_page(template: str, scripts: Sequence[str], data: Mapping[str, Any], **context: Any) -> str:
    """A page from a template.

    Args:
        template: its file name.
        scripts: file names, in order.
        data: what the scripts read; JSON can hold it.
        context: what the template reads.

    Returns:
        HTML.
    """
    return (
        _environment()
        .get_template(template)
        .render(
            **context,
            data=data,
            style=_inline("report.css"),
            plotly=Markup(get_plotlyjs()),
            scripts=[_inline(name) for name in scripts],
        )
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json_script"] = _json_script
    environment.filters["minus"] = _minus
    return environment


def _minus(text: str) -> str:
    """A minus, as in the tables, where a number begins with a hyphen; words keep theirs."""
    return re.sub(r"(?<![^\s\[(])-(?=\d)", "−", text)


def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _inline(name: str) -> Markup:
    """The project's own style or script, trusted as it is."""
    return Markup(_read(name))


def _json_script(value: Any) -> Markup:
    """JSON for a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
