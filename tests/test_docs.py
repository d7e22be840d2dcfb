import ast
import configparser
import dataclasses
import inspect
import os
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap

import keras
import pytest
from conftest import eagerly, once
from test_imports import imported, modules

import keras_tfm
from keras_tfm import artifacts, documents, serving
from keras_tfm.cli import flags
from keras_tfm.layers import SCORES
from keras_tfm.layers.positions import SCHEMES

ROOT = pathlib.Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "saved_models").rglob("README.md")), *sorted(DOCS.rglob("*.md"))]
}
QUICK = {"README.md", "docs/features.md", "docs/guides/layers.md"}  # `make test-slow` runs the others
# The pages train on more texts and for longer than the tests do.
QUICKER = {"50_000": "300"}
QUICKER['recipe="quick"'] = 'recipe="quick", steps=2, num_layers=1, num_shapes=1, jit_compile=False, verbose=0'


def code(page, *languages):
    """The code of a page in these languages; "" for blocks that name none."""
    blocks = re.findall(r"^( *)```(\w*)\n(.*?)^\1```", page, re.DOTALL | re.MULTILINE)
    return "\n".join(textwrap.dedent(block) for _, language, block in blocks if language in languages)


def code_pages():
    for name, page in PAGES.items():
        if program := code(page, "python"):
            yield pytest.param(program, id=name, marks=[pytest.mark.slow] * (name not in QUICK))


@pytest.fixture
def same_tables():
    """Takes back what a page adds to the tables of scores and position schemes."""
    tables = [(table, dict(table)) for table in (SCORES, SCHEMES)]
    yield
    for table, before in tables:
        table.clear()
        table.update(before)


@once
@pytest.mark.usefixtures("one_width", "same_tables")
@pytest.mark.parametrize("program", [*code_pages()])
def test_the_python_code_of_a_page_runs_and_prints_what_its_comments_say(program, tmp_path, monkeypatch, capsys):
    (tmp_path / "saved_models").symlink_to(ROOT / "saved_models")
    monkeypatch.chdir(tmp_path)
    for slow, quick in QUICKER.items():
        program = program.replace(slow, quick)
    monkeypatch.setattr(keras_tfm, "train", eagerly()(keras_tfm.train))  # of few steps
    with eagerly() if re.search(r"^\w.*\.fit\(", program, re.MULTILINE) else monkeypatch.context():
        exec(compile(program, "page", "exec"), {})
    printed = capsys.readouterr().out
    for expected in re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE):
        beginning = expected.partition(" …")[0]
        assert beginning in printed, printed


def command_lines():
    for name, page in PAGES.items():
        lines = code(page, "", "bash").replace("\\\n", " ").splitlines()
        lines = [line.split("  #")[0].split(" | ")[-1] for line in lines]
        lines += [code.replace("\n", " ") for code in re.findall(r"`(keras-tfm [^`]* --[^`]*)`", page)]
        for line in lines:
            if line.startswith("keras-tfm "):
                yield pytest.param(line, id=f"{name}: {line}")


@once
@pytest.mark.parametrize("line", [*command_lines()])
def test_a_command_line_of_a_page_is_understood(line):
    try:
        flags.parse(shlex.split(line)[1:])
    except SystemExit as stop:
        assert stop.code == 0  # --help


def needed(arguments):
    """The packages that a command line needs."""
    if arguments["command"] == "export":
        format = artifacts.FORMATS[arguments["format"]]
        return ["tensorflow", *format.packages, *format.writing_packages]
    format = artifacts.format_of(ROOT / (arguments.get("model") or ""))
    needs = {"train": ["sentencepiece", "sacrebleu"], "import": ["safetensors", "yaml"], "plot": ["matplotlib"]}
    needs |= {"evaluate": ["sacrebleu"], "serve": serving.server.PACKAGES}
    runs = artifacts.FORMATS[format].packages if format else ["tensorflow"]
    return [*runs, *needs.get(arguments["command"], [])]


def installed_for(page, line):
    """The requirements of the extras that a page installs for a command: in the same block, else first of all."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    blocks = [block for _, block in re.findall(r"^```(\w*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)]
    extras = [re.search(r"pip install '[^[]*\[(.*?)\]'", block) for block in blocks]
    own = [found for found, block in zip(extras, blocks, strict=True) if found and line in block]
    others = [found for found, block in zip(extras, blocks, strict=True) if found and "keras-tfm" not in block]
    names = (own or others or list(filter(None, extras)))[0][1].split(",")
    return "\n".join(settings["options.extras_require"][extra] for extra in names)


@once
@pytest.mark.parametrize("name", ["README.md", "docs/get-started.md", "docs/package.md", "docs/guides/opus-mt.md"])
def test_the_install_line_of_a_page_covers_its_commands(name):
    for command in command_lines():
        (line,) = command.values
        if command.id.startswith(f"{name}: ") and "--help" not in line:
            installed = installed_for(PAGES[name], line)
            for package in needed(flags.parse(shlex.split(line)[1:])):
                assert f"{package.replace('_', '-')}>=" in installed, (line, package)


@once
def test_no_page_translates_over_a_reference():
    """Someone who runs a page from top to bottom beside train.en, train.de, test.en and test.de loses nothing."""
    for name, page in PAGES.items():
        written = re.findall(r"keras-tfm translate \S+ \S+ --out (\S+)", page)
        assert all(pathlib.Path(file).suffix in {".hyp", *documents.FORMATS} - {".txt"} for file in written), name


@once
def test_targets_and_files_exist():
    makefile = (ROOT / "Makefile").read_text()
    for name, page in PAGES.items():
        for target in set(re.findall(r"(?:`|^)make ([a-z-]+)", page, re.MULTILINE)):
            assert re.search(rf"^[a-z -]*\b{target}\b[a-z -]*:", makefile, re.MULTILINE), (name, target)
        for file in set(re.findall(r"\b(?:examples|benchmarks|docs|tests|keras_tfm)/[\w/-]+(?:\.\w+)*", page)):
            assert (ROOT / file).exists(), (name, file)


@once
@pytest.mark.parametrize("name", ["README.md", "saved_models/README.md"])
def test_links_into_the_repository_lead_somewhere(name):
    for link in re.findall(r"\]\((?!https://)(.*?)\)", PAGES[name]):
        path, _, part = link.partition("#")
        target = (ROOT / name).parent / path
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if part else []
        assert not part or part in [heading.lower().replace(" ", "-") for heading in headings], link


@once
def test_the_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) < 120


@once
def test_the_figures_of_the_front_page_are_those_of_the_benchmarks():
    figures = re.findall(r"\*\*(.*?)\*\*", PAGES["docs/index.md"])
    assert len(figures) == 3
    assert all(figure in PAGES[page] for figure in figures for page in ("README.md", "docs/benchmarks.md"))


def test_a_package_index_has_no_links_into_this_repository():
    assert all(link.startswith("https://") for link in re.findall(r"\]\((.*?)\)", PAGES["docs/package.md"]))
    assert "long_description = file: docs/package.md" in (ROOT / "setup.cfg").read_text()


# ── the site ──


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built without a warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (folder / "playground").mkdir()
    (folder / "playground/index.html").touch()  # `make docs` adds both pages
    parts = re.findall(r'<section id="\w+"', (ROOT / "keras_tfm/export/page/explain.html").read_text())
    (folder / "playground/explain.html").write_text("".join(f"{part}></section>" for part in parts))
    return folder


def faults(folder):
    return subprocess.run([sys.executable, DOCS / "check_links.py", folder], capture_output=True, text=True).stderr


@once
@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_links_lead_somewhere_and_nothing_comes_from_another_host(site):
    assert faults(site) == ""


@once
def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html">1</a> <a href="#c">2</a> <a href="/a.html">3</a> <a href="a.html">'
    )
    (tmp_path / "d.html").write_text('<script src="https://example.com/x.js"></script> <a href="https://example.com">')
    assert [line.split(" ")[1] for line in faults(tmp_path).splitlines()] == [
        "#c",
        "/a.html",
        "b.html",
        "https://example.com/x.js",
    ]


def public_names():
    """The classes and functions of the public folders and modules, by where the site documents them."""
    for name in keras_tfm.__all__:
        module = getattr(keras_tfm, name)
        for member in getattr(module, "__all__", vars(module)) if inspect.ismodule(module) else ():
            value = getattr(module, member)
            own = (inspect.isroutine(value) or inspect.isclass(value)) and value.__module__.startswith(module.__name__)
            if own and value.__doc__ and not member.startswith("_"):
                yield f"{module.__name__ if name == 'layers' else value.__module__}.{member}"
    yield from (f"keras_tfm.layers.masks.{name}" for name in ("padding", "causal", "window", "segments", "combine"))


def top_level_names():
    return [name for name in keras_tfm.__all__ if not inspect.ismodule(getattr(keras_tfm, name))]


@once
@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_every_public_name_is_in_the_api(site):
    pages = "".join(path.read_text() for path in (site / "api").rglob("*.html"))
    missing = {*public_names()} - {*re.findall(r'id="(keras_tfm[\w.]+)"', pages)}
    assert not missing
    assert not [name for name in top_level_names() if f"<code>keras_tfm.{name}</code>" not in pages]


@once
def test_the_features_can_be_called_as_the_table_says():
    names = {name.rpartition(".")[2] for name in public_names()} | {*top_level_names()}
    calls = re.findall(r"`(\w+\(.*?)`", PAGES["docs/features.md"])
    assert len(calls) > 20
    for call in calls:
        assert ast.parse(call.replace("…", "*rest")) and re.match(r"\w+", call)[0] in names, call


@once
def test_the_names_for_people_from_elsewhere_exist():
    names = {name: getattr(keras_tfm, name) for name in keras_tfm.__all__} | {"keras": keras, "keras_tfm": keras_tfm}
    for module in [value for value in names.values() if hasattr(value, "__all__")]:
        names |= {name: getattr(module, name) for name in module.__all__}
    objects = {"translator": names["Translator"].__call__, "block": names["TransformerDecoderBlock"].call}
    objects |= {"layer": names["MultiHeadSelfAttention"].call}  # what is called if one of these is
    names |= {"translator": names["Translator"], "block": names["TransformerDecoderBlock"]}
    names |= {"layer": names["MultiHeadSelfAttention"], "model": names["Transformer"], "tokenizer": names["Tokenizer"]}
    options = {field.name for kind in (names["Recipe"], names["Beam"]) for field in dataclasses.fields(kind)}

    def value_of(node):
        return getattr(value_of(node.value), node.attr) if isinstance(node, ast.Attribute) else names[node.id]

    lines = [line for line in PAGES["docs/coming-from.md"].splitlines() if line.startswith("| ")]
    cells = [line.strip("| ").split(" | ")[-1] for line in lines]
    snippets = [snippet for cell in cells[2:] for snippet in re.findall("`(.*?)`", cell)]
    assert len(snippets) > 60
    for snippet in snippets:
        if snippet.startswith("keras-tfm "):
            assert snippet.split()[1] in flags.COMMANDS, snippet
            continue
        node = ast.parse(snippet, mode="eval").body
        if isinstance(node, ast.Constant):
            continue
        called = value_of(node.func if isinstance(node, ast.Call) else node)
        if isinstance(node, ast.Call):
            parameters = inspect.signature(objects.get(getattr(node.func, "id", None), called)).parameters
            others = options if any(one.kind is one.VAR_KEYWORD for one in parameters.values()) else set()
            assert {word.arg for word in node.keywords} <= {*parameters} | others, snippet


def proofs():
    """Feature → tests that prove it, as the table says: [(file, name), …]."""
    rows = [line.strip("| ").split(" | ") for line in PAGES["docs/features.md"].splitlines() if line.startswith("| ")]
    return {row[0]: re.findall(r"`(test_\w+\.py)::(test_\w+)`", row[-1]) for row in rows[2:]}


def definitions(file):
    """The functions and assignments of a test file, and of `conftest.py`, by name."""
    found = {}
    for path in (ROOT / "tests/conftest.py", *(ROOT / "tests").rglob(file)):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = node.value
    return found


def marks_of(node, names, backend):
    """The marks that an expression stands for on a backend; none if it is something else than a mark."""
    if isinstance(node, ast.List):
        return [mark for element in node.elts for mark in marks_of(element, names, backend)]
    if isinstance(node, ast.Name):
        return marks_of(names.get(node.id), names, backend)
    if not isinstance(node, ast.expr):
        return []
    try:
        found = eval(compile(ast.Expression(node), "mark", "eval"), {"pytest": pytest, "BACKEND": backend})
    except NameError:  # such as parameters
        return []
    return [found.mark] if hasattr(found, "mark") else []


def runs_on(function, names, backend):
    """Whether `make test` or `make test-slow` runs a test on a backend."""
    nodes = [*function.decorator_list, names.get("pytestmark", ast.List([]))]
    marks = [mark for node in nodes for mark in marks_of(node, names, backend)]
    left_out = {mark.name for mark in marks} & {"skip", "hours"}
    return not left_out and not any(mark.name == "skipif" and mark.args[0] for mark in marks)


def modules_needed(function, names):
    """The modules without which a test, or a fixture or function that it uses, is skipped."""
    seen, found, left = set(), set(), [function]
    while left:
        node = left.pop()
        seen.add(node.name)
        parts = [*ast.walk(node)]
        calls = [part for part in parts if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)]
        found |= {call.args[0].value for call in calls if call.func.attr == "importorskip"}
        used = {part.id for part in parts if isinstance(part, ast.Name)} | {argument.arg for argument in node.args.args}
        left += [names[name] for name in used - seen if isinstance(names.get(name), ast.FunctionDef)]
    return found


@once
def test_each_feature_names_tests_that_run():
    extras = configparser.ConfigParser()
    extras.read(ROOT / "setup.cfg")
    installed = extras["options.extras_require"]["test-slow"]
    table = proofs()
    assert len(table) > 30
    for feature, tests in table.items():
        assert tests, f"{feature}: no test is named"
        for file, name in tests:
            names = definitions(file)
            assert isinstance(names.get(name), ast.FunctionDef), f"{feature}: there is no {file}::{name}"
            assert any(runs_on(names[name], names, backend) for backend in ("tensorflow", "jax")), (file, name)
            for module in modules_needed(names[name], names):
                assert f"{module.partition('.')[0].replace('_', '-')}>=" in installed, (file, name, module)


@once
def test_the_picture_of_the_house_is_true():
    picture = (DOCS / "house.svg").read_text()
    floors = {name: int(y) for y, name in re.findall(r'class="module" [^>]*y="(\d+)"[^>]*>(\w+)<', picture)}
    for file in modules():
        own = file.relative_to(pathlib.Path(keras_tfm.__file__).parent).with_suffix("").parts[0]
        for path in imported(file):
            assert floors[path[0]] >= floors[own], (own, path)
