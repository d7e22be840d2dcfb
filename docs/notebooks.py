"""Makes a notebook of each page of the lectures.

python docs/notebooks.py notebooks [docs/lectures/06_scaling.md …]

Written out here, since jupytext leaves indented code, such as that of solutions, as text. MkDocs calls the last two
functions, so the site has the notebooks beside the pages.
"""

import base64
import json
import pathlib
import re
import sys
import textwrap

LECTURES = pathlib.Path(__file__).parent / "lectures"
FENCE = re.compile(r"^ *```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
BOX = re.compile(r'^( *)(!!!|\?\?\?) \w+ "(.*)"\n((?:\1    .*\n|\n)+)', re.MULTILINE)
NEEDS = "Made from docs/lectures/{}. To run it, `pip install 'keras_tfm[lectures]'`."
NEEDS_MODEL = " Start Jupyter in the folder of the repository, whose `saved_models` it reads."
TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


def notebook(page):
    """The notebook of a page, as JSON; the cells of solutions are folded."""
    text = page.read_text() + "\n"
    cells, end = cells_of(NEEDS.format(page.name) + NEEDS_MODEL * ("saved_models" in text)), 0
    for box in BOX.finditer(text):
        cells += cells_of(text[end : box.start()])
        cells += cells_of(f"**{box[3]}**\n\n{textwrap.dedent(box[4])}", folded=box[2] == "???")
        end = box.end()
    cells += cells_of(text[end:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps(
        {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}, indent=1
    )


def alone(text):
    """A text without links to other pages, which a notebook does not have beside it, and with its pictures inside."""
    text = re.sub("<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r"\[(!\[[^]]*\]\(.*?\))\]\(.*?\)", r"\1", text)  # pictures that are links
    text = re.sub(r"(?<!!)\[([^]]*)\]\((?!https:)[^)]*\)", r"\1", text)
    text = re.sub(r'<a href="\.\.[^>]*>(.*?)</a>', r"\1", text, flags=re.DOTALL)
    return re.sub(r"!\[([^]]*)\]\((.*?)\)", lambda image: f"![{image[1]}]({embedded(LECTURES / image[2])})", text)


def embedded(picture):
    """A picture as an address that contains it."""
    return f"data:{TYPES[picture.suffix]};base64,{base64.b64encode(picture.read_bytes()).decode()}"


def cells_of(text, folded=False):
    """Cells of text and code, in turns."""
    cells, metadata = [], {"jupyter": {"source_hidden": True}} if folded else {}
    for number, part in enumerate(FENCE.split(text)):
        part = textwrap.dedent(part).strip("\n")
        if number % 2:
            cells.append({"cell_type": "code", "execution_count": None, "outputs": [], "source": lines_of(part)})
        elif part := alone(part).strip("\n"):
            cells.append({"cell_type": "markdown", "source": lines_of(part)})
    return [cell | {"metadata": metadata} for cell in cells]


def lines_of(text):
    return text.splitlines(keepends=True)


def pages():
    return [page for page in sorted(LECTURES.glob("*.md")) if FENCE.search(page.read_text())]


def write(folder, chosen):
    folder.mkdir(parents=True, exist_ok=True)
    for page in chosen:
        (folder / f"{page.stem}.ipynb").write_text(notebook(page) + "\n")


def on_page_markdown(markdown, page, **options):
    """Below the title of each such page, which lecture it is, and a link to its notebook."""
    name = pathlib.Path(page.file.src_uri)
    if name.parent.name != "lectures" or not FENCE.search(markdown):
        return markdown
    number = f"Lecture {int(name.stem[:2])}" if name.stem[0].isdigit() else "A page"
    line = f'{number} of <a href="../">the course</a>, which follows the notes of five courses'
    line += f' · <a href="../{name.stem}.ipynb" download>download as a notebook</a>'
    below = f'<p class="notebook">{line}</p>'
    return re.sub(r"^(# .*\n)", lambda title: f"{title[1]}\n{below}\n", markdown, count=1, flags=re.MULTILINE)


def on_post_build(config, **options):
    write(pathlib.Path(config["site_dir"]) / "lectures", pages())


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]), [pathlib.Path(name) for name in sys.argv[2:]] or pages())
