"""HTML and SVG as nested calls, in which every string is escaped unless it is already markup.

All pages of the report are built with `tag`, so nothing that was read from a file can become an element.
"""

from __future__ import annotations

import json
from html import escape
from typing import TypeAlias


class Html(str):
    """Text that is already markup and goes into a page unchanged."""

    __slots__ = ()


Value: TypeAlias = str | float | bool | None


def tag(name: str, /, *children: str, **attributes: Value) -> Html:
    """One element. A trailing underscore is dropped from attribute names and inner ones become hyphens;
    an attribute that is None or False is left out, True stands alone.

    >>> tag("p", "a < b", class_="note", data_value=1.5)
    '<p class="note" data-value="1.5">a &lt; b</p>'
    >>> tag("ul", tag("li", "x"), hidden=True)
    '<ul hidden><li>x</li></ul>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.removesuffix("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escape(str(value))}"')
    return Html(f"<{' '.join(words)}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """Markup side by side; plain strings are escaped.

    >>> join(tag("b", "1"), " & 2")
    '<b>1</b> &amp; 2'
    """
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def embedded_json(identifier: str, value: object) -> Html:
    """Data for the page's script. `<` is written as an escape, so that no string can end the element.

    >>> embedded_json("d", ["</script>"])
    '<script type="application/json" id="d">["\\\\u003c/script>"]</script>'
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{escape(identifier)}">{text}</script>')


def scrolling(label: str, body: Html) -> Html:
    """A box that scrolls sideways by itself, also by keyboard, so that the page never does."""
    return tag("div", body, class_="scroll", tabindex="0", role="region", aria_label=label)
