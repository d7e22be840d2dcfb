import configparser
import pathlib
import subprocess
import sys

import pytest
from conftest import once

from keras_tfm.common import extras

pytestmark = once


def test_a_module_of_a_package_is_loaded():
    assert extras.load("matplotlib.figure").Figure.__module__ == "matplotlib.figure"
    extras.require("matplotlib", "sentencepiece")


@pytest.mark.parametrize("function", [extras.load, extras.require])
def test_the_error_names_package_purpose_and_extra(function, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)  # as if it were not installed
    with pytest.raises(
        ImportError, match=r"^sacrebleu is required for BLEU and chrF: pip install 'keras_tfm\[train\]'"
    ):
        function("sacrebleu")


def test_an_extra_may_be_that_of_a_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel.messages.plurals", None)
    with pytest.raises(ImportError, match=r"^babel is required for plural forms: pip install 'keras_tfm\[documents\]'"):
        extras.load("babel.messages.plurals")


def test_checking_imports_nothing():
    program = (
        "import sys; from keras_tfm.common import extras; extras.require('matplotlib'); "
        "print('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_each_extra_installs_its_package():
    settings = configparser.ConfigParser()
    settings.read(pathlib.Path(__file__).parents[2] / "setup.cfg")
    named = {"sklearn": "scikit-learn>=", "ray": "ray[train]>="}  # unlike the module
    named |= {"fluent": "fluent.syntax>=", "markdown_it": "markdown-it-py>=", "babel.messages": "babel>="}
    for package, (_, extra) in extras.PACKAGES.items():
        requirement = named.get(package, f"{package.replace('_', '-')}>=")
        assert requirement in settings["options.extras_require"][extra], package
