import pathlib
import re

import pytest
from conftest import once

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SAVED_MODELS = (ROOT / "saved_models/README.md").read_text()
PACKAGE = (ROOT / "docs/package.md").read_text()  # what a package index shows


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README + SAVED_MODELS + PACKAGE, re.DOTALL)


@once
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.strip().splitlines()[-1][:40])
def test_python_runs(code, tmp_path, monkeypatch):
    (tmp_path / "saved_models").symlink_to(ROOT / "saved_models")
    monkeypatch.chdir(tmp_path)
    quicker = 'recipe="quick", steps=2, num_layers=1, num_shapes=1, jit_compile=False, verbose=0'
    code = code.replace("50_000", "300").replace('recipe="quick"', quicker)  # to save time
    exec(compile(code, "README.md", "exec"), {})


def test_commands_and_files_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z-]+)", README)):
        assert re.search(rf"^[a-z -]*\b{target}\b[a-z -]*:", makefile, re.MULTILINE), target
    for file in set(re.findall(r"(?:examples|benchmarks|docs|tests)/[\w./]+", README)):
        assert (ROOT / file).exists(), file


def test_a_package_index_has_no_links_into_this_repository():
    assert all(link.startswith("https://") for link in re.findall(r"\]\((.*?)\)", PACKAGE))
    assert "long_description = file: docs/package.md" in (ROOT / "setup.cfg").read_text()
