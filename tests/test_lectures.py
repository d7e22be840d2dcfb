"""Each lecture has a page with all that a lecture needs, which says what its experiment found, and a notebook."""

import importlib
import json
import re
import sys

import pytest
from conftest import once
from test_docs import DOCS, ROOT, code

EXAMPLES = ROOT / "examples/lectures"
LECTURES = {path.stem: path.read_text() for path in sorted((DOCS / "lectures").glob("[0-9]*.md"))}
WITH_CODE = [path for path in sorted((DOCS / "lectures").glob("*.md")) if "```python" in path.read_text()]
INDEX, IDEAS = ((DOCS / f"lectures/{name}.md").read_text() for name in ("index", "ideas"))
each_lecture = pytest.mark.parametrize("name", LECTURES)
pytestmark = once


@pytest.fixture
def run(monkeypatch):
    """The program that fills the pages."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module("run")
    for name in ("run", "lecture"):
        sys.modules.pop(name, None)


@pytest.fixture
def notebooks(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    yield importlib.import_module("notebooks")
    sys.modules.pop("notebooks", None)


def test_the_course_has_a_page_for_each_program_and_lists_them_in_order():
    programs = [path.stem for path in sorted(EXAMPLES.glob("[0-9]*.py"))]
    assert programs == [*LECTURES]
    assert [name.partition("_")[0] for name in LECTURES] == [f"{n:02}" for n in range(1, len(LECTURES) + 1)]
    menu = re.findall(r"lectures/(\d\w+)\.md", (ROOT / "mkdocs.yml").read_text())
    course = re.findall(r"^\| \d+ \| \[.*\?\]\((\w+)\.md\) \|$", INDEX, re.MULTILINE)
    assert menu == course == [*LECTURES]


@each_lecture
def test_a_page_has_the_parts_of_a_lecture_in_their_order(name, run):
    page = LECTURES[name]
    question, *rest = page.splitlines()
    assert re.fullmatch(r"# .*\?", question) and f"[{question[2:]}]({name}.md)" in INDEX
    parts = ["## The equation", '<p class="equation">', "```python", '!!! question "Before you read on"']
    parts += ["## The experiment", run.BEGIN, run.END, "## Exercises", "## Further reading"]
    places = [page.index(part) for part in parts]
    assert places == sorted(places) and page.count(run.BEGIN) == page.count(run.END) == 1
    before = code(page[: page.index("!!! question")], "python")
    assert "numpy" in before or "Counter" in before and "keras_tfm" in before
    exercises = page[page.index("## Exercises") : page.index("## Further reading")]
    assert len(re.findall(r"^\d\. ", exercises, re.MULTILINE)) == exercises.count('    ??? note "Solution"') >= 2


@each_lecture
def test_a_page_leads_on_to_the_api_the_papers_and_a_translator_at_work(name):
    further = LECTURES[name].partition("## Further reading")[2]
    explain = (ROOT / "keras_tfm/export/page/explain.html").read_text()
    assert "](../guides/" in further and "](../api/" in further and "](https://arxiv.org/abs/" in further
    (part,) = re.findall(r'<a href="\.\./\.\./playground/explain\.html#(\w+)">', further)
    assert f'<section id="{part}"' in explain


@each_lecture
def test_a_page_says_what_its_experiment_found(name, run):
    file, page = EXAMPLES / f"{name}.py", LECTURES[name]
    result = run.read(DOCS / "lectures", file)
    found = f"{run.body(file, result, run.MARKDOWN_PICTURE)}\n" if result else ""
    assert f"{run.BEGIN}\n{found}{run.END}" in page


def test_the_table_of_ideas_has_no_empty_cell_and_says_what_the_experiments_found(run):
    for _, name, words, *_ in (span.groups() for span in run.SPAN.finditer(IDEAS)):
        assert name in LECTURES, (name, words)
    results = {name: run.read(DOCS / "lectures", EXAMPLES / f"{name}.py") for name in LECTURES}
    filled = run.SPAN.sub(lambda span: f"{span[1]}{run.cell(results.get(span[2]), span[3])}{span[4]}", IDEAS)
    assert filled == IDEAS
    rows = [line for line in IDEAS.splitlines() if line.startswith("| ")]
    assert len(rows) > 60 and all(cell.strip() for row in rows for cell in row.strip("|").split("|"))


@pytest.mark.parametrize("name", ["by_hand", pytest.param("one_sentence", marks=pytest.mark.slow)])
def test_the_drawings_of_a_page_are_what_their_program_writes(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    importlib.import_module(f"{name}_svg").main(tmp_path)
    page = (DOCS / f"lectures/{name.replace('_', '-')}.md").read_text()
    drawings = sorted(path.name for path in tmp_path.iterdir())
    assert re.findall(r"\]\((\S+)\)\]\(\1\)", page) == drawings  # each leads to itself
    for drawing in drawings:
        assert (tmp_path / drawing).read_text() == (DOCS / "lectures" / drawing).read_text()


def test_the_matrices_drawn_by_hand_are_those_of_the_page(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    drawn, page = importlib.import_module("by_hand_svg"), (DOCS / "lectures/by-hand.md").read_text()
    for name, matrix in {"X": drawn.X, "W_q": drawn.W_Q, "W_k": drawn.W_K, "W_v": drawn.W_V}.items():
        assert f"\n{name} = np.array({matrix.tolist()})" in page


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_a_notebook_has_the_code_of_its_page_and_stands_alone(page, notebooks):
    cells = json.loads(notebooks.notebook(page))["cells"]
    assert {cell["cell_type"] for cell in cells} == {"code", "markdown"}
    assert len({cell["id"] for cell in cells}) == len(cells)
    programs = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert "\n".join(programs).split() == code(page.read_text(), "python").split()
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert not re.findall(r"\]\((?!https://|data:)|<a href|\?\?\?|!!!|```python|<!--", text)
    solutions = [cell for cell in cells if cell["metadata"]]
    assert (solutions != []) == ("??? note" in page.read_text())


@pytest.mark.slow
def test_make_notebooks_writes_them_and_one_runs(tmp_path, notebooks, capsys):
    notebooks.write(tmp_path, notebooks.pages())
    assert len([*tmp_path.iterdir()]) == len(WITH_CODE)
    variables = {}
    for cell in json.loads((tmp_path / "06_scaling.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "cell", "exec"), variables)
    assert capsys.readouterr().out.splitlines()[:2] == ["1.0 1.0", "True False"]
