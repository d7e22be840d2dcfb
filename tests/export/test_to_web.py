"""Pages: the model by Python's runtime here, and by LiteRT.js in Chromium, where one is installed."""

import functools
import http.server
import importlib.util
import json
import pathlib
import re
import shutil
import threading
import time
import urllib.parse

import numpy as np
import pytest
from conftest import BYTES, IN_TENSORFLOW, assert_close, refused, several_translator, small_translator, spread
from test_runners import empty_runtime, shared_export, shared_translator
from test_tokenizers import keras_hub_tokenizer

from keras_tfm import artifacts
from keras_tfm.common import extras
from keras_tfm.data import tasks
from keras_tfm.export import runners
from keras_tfm.layers.recording import record_attention
from keras_tfm.models import bytenet, conv, rnn_attention, transformer
from keras_tfm.text import END, START
from keras_tfm.translator import Translator

pytestmark = [IN_TENSORFLOW, pytest.mark.xdist_group("exported")]  # where the shared export is

ROOT = pathlib.Path(__file__).parents[2]


def signatures(folder):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(folder / "translator.tflite"))
    return {name: interpreter.get_signature_runner(name) for name in interpreter.get_signature_list()}


def padded(ids, width):
    return np.array([[*ids, *[0] * (width - len(ids))]], "int32")


def assert_attention_is_that_of_the_model(translator, folder, text="two cats run"):
    run, settings = signatures(folder)["attention"], json.loads((folder / "translator.json").read_text())
    (source,), (target,) = translator.source_tokenizer.encode([text]), translator.target_tokenizer.encode(["a dog"])
    source, target, model = [*source, END], [START, *target], translator.models[0]
    with record_attention() as maps:
        model({"source": np.array([source]), "target": np.array([target])})
    expected = [maps[layer.path][0][0] for layer in model.decoder.memory_attentions]
    weights = run(source=padded(source, settings["max_length"]), target=padded(target, settings["longest"]))["weights"]
    assert settings["heads"] == [len(x) for x in expected]
    assert weights.shape == (sum(settings["heads"]), settings["longest"], settings["max_length"])
    assert_close(weights[:, : len(target), : len(source)], np.concatenate(expected))
    assert not weights[:, : len(target), len(source) :].any()  # padding


def test_the_file_returns_the_n_best_of_the_translator():
    translate, ours = signatures(shared_export("web"))["translate"], shared_translator()
    for text in ("a dog", "two cats run over the grass, and then more"):
        (ids,) = ours.source_tokenizer.encode([text])
        found = translate(ids=padded([*ids, END], 64))
        expected = ours.n_best([text], 3)[0]
        rows = [row[:length] for row, length in zip(found["ids"][0], found["lengths"][0], strict=True)]
        assert ours.target_tokenizer.decode(rows) == [string for string, _ in expected]
        assert_close(found["scores"][0], [score for _, score in expected], 1e-4)


def test_shapes_and_types_are_those_that_a_browser_can_run():
    for run in signatures(shared_export("web")).values():
        for details in (*run.get_input_details().values(), *run.get_output_details().values()):
            assert details["dtype"] in (np.int32, np.float32)
            assert (
                -1 not in details["shape_signature"]
                and details["shape_signature"].tolist() == details["shape"].tolist()
            )


def test_attention_is_that_of_the_model():
    assert_attention_is_that_of_the_model(shared_translator(), shared_export("web"))


@pytest.mark.slow
def test_the_amount_of_padding_changes_nothing(tmp_path):
    ours, runtime = small_translator("bpe", num_beams=3), empty_runtime(tmp_path / "node_modules")
    (ids,) = ours.source_tokenizer.encode(["two cats run"])
    found = []
    for width in (24, 60):
        ours.export(tmp_path / "site", "web", "int8", max_length=width, runtime=runtime)
        run = signatures(tmp_path / "site")
        answer = run["translate"](ids=padded([*ids, END], width))
        (row,), length = answer["ids"][0, :1], int(answer["lengths"][0, 0])
        target = padded([START, *row[: length - 1]], ours.longest(width))
        weights = run["attention"](source=padded([*ids, END], width), target=target)["weights"]
        found.append((row[:length], answer["scores"], weights[:, :length, : len(ids) + 1]))
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build, sizes",
    [
        (transformer, {"num_layers": 2, "model_dim": 16, "num_heads": 2, "ff_dim": 32, "packed": True}),
        (rnn_attention, {"units": 16, "model_dim": 16, "num_layers": 2}),
        (rnn_attention, {"units": 16, "model_dim": 16, "attention": "luong", "score": "bilinear"}),
        (conv, {"units": 16, "model_dim": 16, "num_layers": 2}),
        (bytenet, {"model_dim": 16}),
    ],
    ids=["packed", "bahdanau", "luong", "conv", "bytenet"],
)
def test_every_model_has_a_page(build, sizes, tmp_path):
    ours = Translator(spread(build(BYTES.vocab_size, **sizes), 0.2), BYTES, num_beams=2, max_length=32)
    ours.widths, ours.jit_compile = [32], False
    runtime = empty_runtime(tmp_path / "node_modules")
    texts = ["a dog", "two cats run over the grass", "b", "über 🙂"]
    verdict = ours.export(tmp_path / "site", "web", "float32", runtime=runtime, compare_on=texts)
    assert verdict.same == verdict.texts == 4
    if build is bytenet:
        assert set(signatures(tmp_path / "site")) == {"translate"}
    elif not sizes.get("packed"):  # whose call takes more inputs
        assert_attention_is_that_of_the_model(ours, tmp_path / "site")


def test_a_page_knows_its_title_and_examples(tmp_path):
    folder = shared_export("web")
    settings = json.loads((folder / "translator.json").read_text())
    assert (settings["title"], settings["examples"], settings["n_best"]) == ("Translator", [], 3)
    assert "runtime" not in settings
    assert {path.name for path in folder.iterdir()} == {
        *artifacts.PAGE,
        *("translator.json", "translator.tflite", "runtime", "source_tokenizer", "target_tokenizer"),
    }
    assert '"./wasm-utils.js"' in (folder / "runtime/litert.js").read_text()


def test_what_a_browser_cannot_run_is_refused(tmp_path):
    tokenizer = keras_hub_tokenizer("word_piece")
    ours = Translator(transformer(tokenizer.vocab_size, size="tiny"), tokenizer)
    runtime = empty_runtime(tmp_path / "node_modules")
    with refused("tokenizer"):
        ours.export(tmp_path / "site", "web", runtime=runtime)
    (runtime / extras.NPM_FILES["litert.js"]).write_text("another version")
    with refused("runtime"):
        small_translator("bytes", num_beams=1).export(tmp_path / "site", "web", runtime=runtime)
    assert not (tmp_path / "site").exists()


def test_the_project_installs_the_runtime_that_it_names():
    assert json.loads((ROOT / "package.json").read_text())["dependencies"] == extras.NPM_PACKAGES | extras.D3_PACKAGES


# ── in a browser ──


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder on this machine."""

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), functools.partial(QuietHandler, directory=folder))
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server_port}"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


class Page:
    """A page in Chromium."""

    def __init__(self, folder, profile, query=""):
        from selenium import webdriver

        self.server, options = Server(folder), webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in ("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"):
            options.add_argument(f"--{flag}")
        options.add_argument("--disable-background-networking")
        options.add_argument("--disable-component-update")
        options.add_argument(f"--user-data-dir={profile}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        self.driver.get(self.server.address + query)
        self.until("return document.getElementById('status').hidden || document.querySelector('.problem') !== null")

    def until(self, script, *arguments, seconds=60):
        end = time.monotonic() + seconds
        while not (found := self.driver.execute_script(script, *arguments)):
            assert time.monotonic() < end, (script, arguments)
            time.sleep(0.02)
        return found

    def text(self, name):
        return self.driver.execute_script(f"return document.getElementById('{name}').textContent")

    def shows(self, name):
        return self.driver.execute_script(f"return document.getElementById('{name}').checkVisibility()")

    def translate(self, text):
        script = "const box = document.getElementById('source'); box.value = arguments[0];"
        self.driver.execute_script(script + "box.dispatchEvent(new Event('input'))", text)
        self.until("return document.getElementById('translation').dataset.of === arguments[0]", text)
        return self.text("translation")

    def choose(self, language):
        script = "const menu = document.getElementById('language'); menu.value = arguments[0];"
        self.driver.execute_script(script + "menu.dispatchEvent(new Event('change'))", language)
        self.until("return document.getElementById('translation').dataset.language === arguments[0]", language)

    def close(self):
        self.driver.quit()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def browser():
    """Skips tests where there is nothing to run a page in."""
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed: no browser to test the page in")
    if not importlib.util.find_spec("selenium"):
        pytest.skip("selenium is not installed: nothing drives the browser")
    if not (ROOT / "node_modules/@litertjs").is_dir():
        pytest.skip("LiteRT.js is not installed: run `npm install --no-package-lock`")


@pytest.fixture(scope="module")
def site(browser, tmp_path_factory):
    """The page of the date translator, in a folder."""
    folder = tmp_path_factory.mktemp("pages") / "site"
    examples = (ROOT / "examples/dates.txt").read_text().splitlines()
    page = {"title": "Dates", "examples": examples, "runtime": ROOT / "node_modules"}
    Translator.load(artifacts.SHIPPED, num_beams=4, max_length=64).export(folder, "web", **page)
    return folder


@pytest.fixture(scope="module")
def page(site, tmp_path_factory):
    page = Page(site, tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.mark.slow
def test_dates_are_translated_as_by_the_runners_in_python(page, site):
    texts = [source for source, _ in tasks.dates(50, "test")]
    found = [page.translate(text) for text in texts]
    assert found == runners.load(site)(texts) == runners.load(ROOT / "saved_models/dates/litert")(texts)
    assert page.text("time").endswith(" ms")


@pytest.mark.slow
def test_the_page_shows_hypotheses_and_their_attention(page):
    from selenium import webdriver

    text = "Mittwoch, 3. Mai 2023"
    assert page.translate(text) == "2023-05-03"
    hypotheses = page.driver.execute_script(
        "return [...document.querySelectorAll('#hypotheses span')].map((x) => x.innerText)"
    )
    assert len(hypotheses) == len(set(hypotheses)) == 4 and hypotheses[0] == "2023-05-03"
    page.until("return document.getElementById('map').width > 300")
    # The row of the token that the "5" of the month is read from, by the arrow keys.
    weights = page.driver.execute_async_script(
        """
        const [done] = arguments;
        const canvas = document.getElementById("map");
        const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key }));
        const read = () => document.getElementById("weight").textContent;
        press("ArrowDown");
        for (let row = 0; row < 6; row++) press("ArrowDown");
        const cells = [read()];
        for (let column = 0; column < 21; column++) {
          press("ArrowRight");
          cells.push(read());
        }
        done(cells);
        """
    )
    shares = [float(cell.rpartition(": ")[2].removesuffix(" %")) for cell in weights]
    assert len(shares) == len(text) + 1 and abs(sum(shares) - 100) < 2
    assert all(cell.startswith("“5” → “") for cell in weights) and weights[-1].startswith("“5” → “end”")
    assert sum(shares[text.index("Mai") : text.index("Mai") + 3]) > 50
    canvas = page.driver.find_element("id", "map")
    page.driver.execute_script("arguments[0].scrollIntoView({ block: 'center' })", canvas)
    webdriver.ActionChains(page.driver).move_to_element(canvas).perform()
    assert re.fullmatch(r"“.” → “.”: [\d.]+ %", page.text("weight"))
    webdriver.ActionChains(page.driver).move_by_offset(0, -canvas.size["height"] // 2 - 9).perform()
    assert page.text("weight") == ""


@pytest.mark.slow
def test_any_text_gets_a_translation(page, site):
    translate = runners.load(site)
    assert page.translate("") == "" and not page.shows("attention") and not page.shows("cut")
    assert page.translate(" \t ") == ""
    for text in ("🎉👩‍👩‍👧 3 mai 2023 😀", "<b>4</b> &amp; 🙂", "ﬁ ① 年"):
        assert page.translate(text) == translate([text])[0]
    long = "Mittwoch, 3. Mai 2023 " * 500
    with pytest.warns(UserWarning, match="10937 of 11000 tokens were cut off"):
        expected = translate([long])
    assert [page.translate(long)] == expected
    assert "The last 10937 of 11000 tokens were cut off" in page.text("cut") and page.shows("cut")
    assert page.translate("3 mai 2023") == "2023-05-03" and not page.shows("cut") and page.shows("attention")


@pytest.mark.slow
def test_the_page_of_a_multilingual_model_translates_and_keeps_placeholders_as_python_does(browser, tmp_path):
    examples = [
        ">>fr<<a dog",
        "two cats run",
        "Delete %s?",
        "Copy {a} to <b>",
        "{a} {b} {c} {d}",
    ]  # more than three slots
    translator, options = several_translator(num_beams=3), {"examples": examples, "runtime": ROOT / "node_modules"}
    translator.export(tmp_path / "site", "web", "float32", **options)
    translate = runners.load(tmp_path / "site")
    page = Page(tmp_path / "site", tmp_path / "profile", "?to=fr&other=1")
    try:
        menu = "return [...document.getElementById('language').options].map((option) => [option.text, option.value])"
        assert page.driver.execute_script(menu) == [["French", "fr"], ["German", "de"]]
        page.until("return document.getElementById('translation').dataset.language === 'fr'")
        assert page.text("translation") == translate("a dog", target_language="fr") and page.shows("languages")
        for language in ("de", "fr"):
            page.choose(language)
            assert page.driver.current_url.endswith(f"/?to={language}&other=1")
            for text in examples[1:] + [">>de<<a dog", "", "two cats run"]:
                ((expected, problem),) = translate.translate_protected([text], target_language=language)
                assert page.translate(text) == expected
                assert page.shows("kept") == bool(problem) and problem in page.text("kept")
        page.driver.refresh()
        page.until("return document.getElementById('translation').dataset.language === 'fr'")
        chips = "return [...document.querySelectorAll('#examples button')].map((button) => button.textContent)"
        assert page.driver.execute_script(chips) == ["a dog", *examples[1:]]
        assert not [entry for entry in page.driver.get_log("browser") if entry["level"] == "SEVERE"]
    finally:
        page.close()


@pytest.mark.slow
def test_the_page_of_a_bilingual_model_has_no_language_menu(page):
    assert not page.shows("languages") and not page.shows("kept") and page.driver.current_url.endswith("/")


@pytest.mark.slow
def test_examples_can_be_clicked_on(page):
    page.driver.execute_script("document.querySelectorAll('#examples button')[2].click()")
    page.until("return document.getElementById('translation').textContent === '1989-11-09'")
    assert page.driver.title == page.text("title") == "Dates"


@pytest.mark.slow
def test_nothing_is_logged_as_an_error_and_no_other_host_is_asked(page):
    page.driver.refresh()
    page.until("return document.getElementById('translation').textContent === '2023-05-03'")
    assert not [entry for entry in page.driver.get_log("browser") if entry["level"] == "SEVERE"]
    requests = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    urls = {x["params"]["request"]["url"] for x in requests if x["method"] == "Network.requestWillBeSent"}
    assert f"{page.server.address}/worker.js" in urls
    outside = {url for url in urls if url.startswith("http") and not url.startswith(page.server.address)}
    assert not outside


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["translator.tflite", "protected.js", "runtime/litert_wasm_internal.wasm", "worker.js"]
)
def test_a_page_reports_missing_files(name, site, tmp_path):
    shutil.copytree(site, tmp_path / "site")
    (tmp_path / "site" / name).unlink()
    page = Page(tmp_path / "site", tmp_path / "profile")
    try:
        assert page.text("status").startswith("The translator failed: ")
    finally:
        page.close()


@pytest.mark.slow
def test_a_page_opened_as_a_file_reports_that_it_needs_a_server(page, site):
    page.driver.get(f"file://{urllib.parse.quote(str(site))}/index.html")
    assert "python3 -m http.server" in page.text("status")
