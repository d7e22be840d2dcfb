"""What the programs that draw pictures of the pages share."""

import html
import pathlib
import re

STYLE = "text{font:15px system-ui,sans-serif;text-anchor:middle;fill:#1e293b}.title{font-size:19px;font-weight:600}"
STYLE += ".name{font-weight:600}.note{font-size:13px;fill:#475569}.end{text-anchor:end}.start{text-anchor:start}"
STYLE += ".light{fill:#fff}"


def write(path, width, height, title, shapes, style=""):
    """Writes a picture with a title: on a white card, since pages may be dark."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    card = '<rect width="100%" height="100%" rx="12" fill="#fff"/>'
    lines = [f'{head} aria-label="{title}">', f"<style>{STYLE}{style}</style>", card]
    lines += [text(width / 2, 38, title, "title"), *shapes, "</svg>"]
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def text(x, y, words, classes="", upright=False):
    """Words around x, or as their classes say, perhaps from below to above; “W_q” has an index."""
    words = re.sub(r"_(\w)$", r'<tspan dy="4" font-size="11">\1</tspan>', html.escape(words, quote=False))
    turn = f' transform="rotate(-90 {x:g} {y:g})"' if upright else ""
    return f'<text class="{classes}" x="{x:g}" y="{y:g}"{turn}>{words}</text>'


def rect(x, y, width, height, fill, more=""):
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" {more}/>'
