"""The page that explains a model, in Chromium and in Firefox, where they are installed, against Python."""

import functools
import itertools
import json
import shutil
import subprocess

import numpy as np
import pytest
from conftest import IN_TENSORFLOW, assert_close
from test_to_web import ROOT, Page, Server, browser  # noqa: F401, a fixture

from keras_tfm import artifacts, ops
from keras_tfm.data import tasks
from keras_tfm.layers.recording import attention_maps
from keras_tfm.text import END, START
from keras_tfm.translator import Translator

pytestmark = [IN_TENSORFLOW, pytest.mark.slow]
TEXTS = (*(source for source, _ in tasks.dates(20, "test")), "12 de octubre de 1992")

# What the page shows, as one object.
SHOWN = """
const texts = (selector) => [...document.querySelectorAll(selector)].map((each) => each.textContent);
const values = (selector) => [...document.querySelectorAll(selector)].map((each) => Number(each.value));
return {
  translation: document.getElementById("translation").textContent,
  hypotheses: texts("#hypotheses span"),
  scores: values("#hypotheses data"),
  step: document.getElementById("step-words").textContent,
  shares: values("#bars data"),
  looks: [...document.querySelectorAll("#looks .token")].map((each) => each.title),
  effect: document.getElementById("effect").textContent,
  written: texts("#written .token:not(.future)"),
};
"""


@functools.cache
def translator():
    return Translator.load(artifacts.SHIPPED, num_beams=4, max_length=64)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if not (ROOT / "node_modules/d3").is_dir() or not (ROOT / "node_modules/@litertjs").is_dir():
        pytest.skip("LiteRT.js and D3 are not installed: run `npm install --no-package-lock`")
    folder = tmp_path_factory.mktemp("pages") / "site"
    page = {"title": "Dates", "examples": ["Mittwoch, 3. Mai 2023"], "runtime": ROOT / "node_modules", "explain": True}
    translator().export(folder, "web", "float32", **page)
    return folder


class ExplainPage(Page):
    def show(self, text):
        """Types a text and returns what is shown when all is computed."""
        script = "delete document.body.dataset.shown; const box = document.getElementById('source');"
        script += "box.value = arguments[0];"
        self.driver.execute_script(script + "box.dispatchEvent(new Event('input'))", text)
        return self.shown(text)

    def shown(self, text):
        self.until("return document.body.dataset.shown === arguments[0]", text)
        return self.driver.execute_script(SHOWN)

    def click(self, selector):
        self.driver.execute_script("document.querySelector(arguments[0]).click()", selector)
        return self.driver.execute_script(SHOWN)

    def change(self, selector):
        """Clicks on what makes the model compute, and waits for the result."""
        text = self.driver.execute_script(
            "const { shown } = document.body.dataset; delete document.body.dataset.shown; return shown"
        )
        self.click(selector)
        return self.shown(text)


@pytest.fixture(scope="module")
def page(browser, site, tmp_path_factory):  # noqa: F811
    page = ExplainPage(site, tmp_path_factory.mktemp("profile"), "/explain.html")
    page.until("return document.body.dataset.shown")  # the first example, so that its result is not taken for another's
    yield page
    page.close()


@functools.cache
def best_of_python(texts):
    """The four best translations of each text, with their scores."""
    return dict(zip(texts, translator().n_best(list(texts), 4), strict=True))


def expected_at(text, translation, step):
    """Probabilities of the next tokens, and mean weights of the last cross-attention, at a step."""
    ours, (model,) = translator(), translator().models
    (source,), (target,) = ours.source_tokenizer.encode([text]), ours.target_tokenizer.encode([translation])
    inputs = {"source": np.array([[*source, END]]), "target": np.array([[START, *target]])}
    shares = ops.convert_to_numpy(ops.softmax(model(inputs)))[0, step]
    weights = attention_maps(model, inputs)[model.decoder.memory_attentions[-1].path][0]
    return np.sort(shares)[::-1][:10], weights.mean(axis=0)[step]


def assert_values_are_those_of_python(text, shown, step):
    best = best_of_python(TEXTS)[text]
    assert shown["translation"] == best[0][0]
    assert shown["hypotheses"] == [string for string, _ in best]
    assert_close(shown["scores"], [score for _, score in best], 1e-3)
    shares, weights = expected_at(text, best[0][0], step)
    assert_close(shown["shares"], shares, 1e-3)
    assert_close([float(each.rpartition(": ")[2].removesuffix(" %")) / 100 for each in shown["looks"]], weights, 1e-3)


def test_values_are_those_of_python(page):
    assert len(set(TEXTS)) > 20
    for text in TEXTS:
        page.show(text)
        page.click("#first")
        page.click("#next")
        assert_values_are_those_of_python(text, page.click("#next"), 2)


def test_steps_go_forwards_backwards_and_by_themselves(page):
    text = "Mittwoch, 3. Mai 2023"
    page.show(text)
    assert page.click("#first")["written"] == ["2"]
    assert page.click("#next")["written"] == ["2", "0"]
    assert page.click("#previous")["step"] == "step 1 of 11: writes “2”"
    page.click("#play")
    assert page.driver.execute_script("return document.getElementById('play').ariaLabel") == "Pause"
    page.until("return document.getElementById('step').value === '11'")
    page.until("return document.getElementById('play').ariaLabel === 'Play'")
    assert page.driver.execute_script(SHOWN)["written"][-1] == "end"


def test_a_layer_that_is_switched_off_changes_the_translation_as_in_python(page):
    text = "12 de octubre de 1992"
    before = page.show(text)
    assert before["effect"].startswith("All heads are on")
    after = page.change("#switches fieldset:nth-child(3) div:nth-of-type(2) .layer")
    kernel = translator().models[0].decoder.memory_attentions[-1].output_dense.kernel
    kept = ops.convert_to_numpy(kernel)
    try:
        kernel.assign(np.zeros_like(kept))
        expected = translator()(text)
    finally:
        kernel.assign(kept)
    assert after["translation"] == expected != before["translation"] == "1992-10-12"
    assert f"{before['translation']} → {expected}" in after["effect"]
    one = page.change("#switches fieldset:nth-child(3) div:nth-of-type(2) .head")  # one head of them is on again
    assert one["effect"] != after["effect"]
    assert page.change("#restore") == before


def test_without_positions_the_page_explains_what_is_lost(page):
    page.show("12 de octubre de 1992")
    page.change("#positions")
    assert page.text("positions-effect").startswith("Without positions: The translation changes:")
    assert page.change("#positions")["translation"] == "1992-10-12" and not page.shows("positions-effect")


def test_the_beam_is_drawn_without_overlaps_and_its_best_translation_in_one_line(page):
    page.show("12 de octubre de 1992")
    boxes, best = page.driver.execute_script(
        """
        const box = (node) => node.querySelector("rect").getBoundingClientRect().toJSON();
        return [[...document.querySelectorAll("#tree .node")].map(box),
                [...document.querySelectorAll("#tree .node.path")].map(box)];
        """
    )
    assert len(boxes) > len(best) == len("1992-10-12") + 1 and len({box["y"] for box in best}) == 1
    for one, other in itertools.combinations(boxes, 2):
        beside = one["right"] <= other["left"] or other["right"] <= one["left"]
        assert beside or one["bottom"] <= other["top"] or other["bottom"] <= one["top"], (one, other)


def test_a_hypothesis_of_the_beam_can_be_followed(page):
    page.show("3. Mai 2023")
    press = "arguments[0].dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter' })); return arguments[0].ariaLabel"
    dead = page.driver.find_element("css selector", "#tree .node.dead")
    words = page.driver.execute_script(press, dead)
    assert "Died: its best continuation had" in words and words == page.text("node-words")
    tokens = words[1 : words.index("”")].split(" ")
    page.until("return document.querySelectorAll('#written .token').length === arguments[0]", len(tokens))
    labels = "return [...document.querySelectorAll('#written .token')].map((each) => each.textContent)"
    assert page.driver.execute_script(labels) == tokens
    assert page.shows("other") and page.shows("follow")
    page.click("#best")
    page.until("return document.getElementById('other').hidden")
    assert "".join(page.driver.execute_script(labels)).startswith("2023-05-03")
    change = "const x = document.getElementById('num-beams'); x.value = 1; x.dispatchEvent(new Event('change'))"
    page.driver.execute_script(change)
    page.until("return document.querySelectorAll('#hypotheses label').length === 1")
    assert page.driver.execute_script("return document.querySelectorAll('#tree .node.dead').length") == 0
    page.driver.execute_script(change.replace("= 1", "= 4"))
    page.until("return document.querySelectorAll('#hypotheses label').length === 4")


def test_cells_show_how_they_are_computed(page):
    page.show("3. Mai 2023")
    key = "document.getElementById('encoder-map').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown' }))"
    page.driver.execute_script(key)
    assert page.text("encoder-words").startswith("“3” → “3”: ")
    assert "query · key / √16 = score" in page.text("encoder-cell")


@pytest.mark.parametrize("width, unit", [(390, 1), (1280, 1), (1920, 1.25)], ids=["phone", "desk", "projector"])
def test_the_page_fits_a_screen(width, unit, page):
    page.show("3. Mai 2023")
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width == 390}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert page.driver.execute_script("return document.documentElement.scrollWidth") <= width
        scale = "const tree = document.getElementById('tree'); return tree.clientWidth / tree.viewBox.baseVal.width"
        page.until(f"{scale} > {unit} - 0.01 && {scale.rpartition('return ')[2]} < {unit} + 0.01")
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


# Where the Tab key has led; null if the element does not look different from others.
STOPS = """
const at = document.activeElement;
if (at === document.body) return "end";
const shown = [at, at.parentElement].some((each) => getComputedStyle(each).outlineStyle !== "none");
return shown ? (at.closest("[id]")?.id ?? at.tagName) : null;
"""


def test_everything_can_be_reached_and_used_by_keyboard(page):
    from selenium.webdriver import ActionChains, Keys

    page.show("3. Mai 2023")
    page.driver.execute_script("document.getElementById('source').focus()")

    def press(key):
        ActionChains(page.driver).send_keys(key).perform()
        return page.driver.execute_script(STOPS)

    stops = list(itertools.takewhile(lambda stop: stop != "end", (press(Keys.TAB) for _ in range(200))))
    assert 60 < len(stops) < 200 and None not in stops
    order = ["examples", "token-list", "positions", "strips", "encoder-heads", "encoder-map", "first", "play", "step"]
    order += ["decoder-head", "written", "temperature", "memory-map", "self-map", "grow", "num-beams", "tree"]
    order += ["hypotheses", "switches"]
    found = [stops.index(name) for name in order]
    assert found == sorted(found)
    assert stops.count("tree") == stops.count("encoder-heads") == stops.count("hypotheses") == 1  # arrows lead on

    page.driver.execute_script("document.querySelector('#tree [tabindex=\"0\"]').focus()")
    press(Keys.ARROW_RIGHT)
    best = page.text("node-words")
    press(Keys.ARROW_DOWN)
    second = page.text("node-words")
    assert best.startswith("“2”: ") and second != best
    press(Keys.ARROW_UP)
    assert page.text("node-words") == best
    press(Keys.ENTER)
    page.until("return document.querySelectorAll('#written .token').length === 1")
    press(Keys.ARROW_LEFT)
    assert page.text("node-words").startswith("The start token")


def test_everything_has_a_name_for_screen_readers(page):
    page.show("3. Mai 2023")
    nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    focusable = [
        node
        for node in nodes
        if any(each["name"] == "focusable" and each["value"]["value"] for each in node.get("properties", []))
        and node["role"]["value"] != "RootWebArea"
    ]
    assert len(focusable) > 60
    assert not [node["role"]["value"] for node in focusable if not node.get("name", {}).get("value")]
    assert {"application", "button", "link", "radio", "slider", "textbox", "checkbox", "combobox"} <= {
        node["role"]["value"] for node in focusable
    }
    images = [node for node in nodes if node["role"]["value"] in ("img", "image", "radiogroup", "group")]
    assert not [node for node in images if not node.get("ignored") and not node.get("name", {}).get("value")]


def test_nothing_moves_for_visitors_who_prefer_that(page):
    media = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    scrolling = "return getComputedStyle(document.documentElement).scrollBehavior"
    assert page.driver.execute_script(scrolling) == "smooth"
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        assert page.driver.execute_script(scrolling) == "auto"
        page.show("12 de octubre de 1992")
        page.click("#next")
        assert page.driver.execute_script("return document.getAnimations().length") == 0
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_any_text_gets_a_translation(page):
    assert page.show("")["translation"] == "" and not page.shows("tokens") and page.shows("nothing")
    page.show("Mittwoch, 3. Mai 2023 " * 9)
    assert page.shows("cut") and "151 tokens were cut off" in page.text("cut")
    assert page.show("3. Mai 2023")["translation"] == "2023-05-03" and not page.shows("cut")
    assert page.shows("tokens") and not page.shows("nothing")


def test_nothing_is_logged_as_an_error_and_no_other_host_is_asked(page):
    assert not [entry for entry in page.driver.get_log("browser") if entry["level"] == "SEVERE"]
    requests = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    urls = {x["params"]["request"]["url"] for x in requests if x["method"] == "Network.requestWillBeSent"}
    assert f"{page.server.address}/runtime/d3.js" in urls
    assert not {url for url in urls if url.startswith("http") and not url.startswith(page.server.address)}


@pytest.mark.parametrize("name", ["explain.tflite", "explain/worker.js", "explain/search.js", "runtime/d3.js"])
def test_a_page_reports_missing_files(name, browser, site, tmp_path):  # noqa: F811
    shutil.copytree(site, tmp_path / "site")
    (tmp_path / "site" / name).unlink()
    page = ExplainPage(tmp_path / "site", tmp_path / "profile", "/explain.html")
    try:
        assert page.text("status").startswith("The page failed: ")
    finally:
        page.close()


def test_a_page_opened_as_a_file_reports_that_it_needs_a_server(page, site):
    page.driver.get(f"file://{site}/explain.html")
    assert "python3 -m http.server" in page.text("status")


# Opens the page in Firefox, types, steps, plays, follows a hypothesis that died, switches a layer off, and prints what
# is shown, errors and addresses.
FIREFOX = """
import puppeteer from "PUPPETEER";
const [address, executablePath, profile, ...texts] = process.argv.slice(1);
const [patience, headless, userDataDir] = [120000, true, profile];
const options = { browser: "firefox", executablePath, userDataDir, headless, timeout: patience };
const browser = await puppeteer.launch(options);
const page = await browser.newPage();
page.setDefaultTimeout(patience);
const [errors, urls] = [[], []];
page.on("pageerror", (error) => errors.push(error.message));
page.on("console", (line) => line.type() === "error" && errors.push(line.text()));
page.on("request", (request) => urls.push(request.url()));
await page.goto(`${address}/explain.html`);
const shown = async (text) => {
  await page.waitForFunction((text) => document.body.dataset.shown === text, {}, text);
  return page.evaluate(() => { SHOWN });
};
await page.waitForFunction(() => document.getElementById("status").hidden);
const before = [];
for (const text of texts) {
  await page.evaluate(() => (document.getElementById("source").value = ""));
  await page.type("#source", text);
  await shown(text);
  for (const id of ["#first", "#next", "#next"]) await page.click(id);
  before.push(await shown(text));
}
const text = texts.at(-1);
await page.click("#play");
await page.waitForFunction(() => document.querySelectorAll("#written .future").length === 0);
const played = await shown(text);
const change = async (selector) => {
  await page.evaluate(() => delete document.body.dataset.shown);
  await page.click(selector);
  return shown(text);
};
const followed = await change("#tree .node.dead rect");
const words = await page.$eval("#node-words", (each) => each.textContent);
const after = await change("#switches fieldset:nth-child(3) div:nth-of-type(2) .layer");
console.log(JSON.stringify({ before, played, followed, words, after, errors, urls }));
await browser.close();
"""


def test_firefox_shows_the_same(site, tmp_path):
    program, puppeteer = shutil.which("firefox-esr") or shutil.which("firefox"), ROOT / "node_modules/puppeteer-core"
    if not (program and shutil.which("node") and puppeteer.is_dir()):
        pytest.skip("Firefox, Node.js or puppeteer-core is not installed: no second browser to test the page in")
    server, texts = Server(site), TEXTS[-3:]
    entry = (puppeteer / json.loads((puppeteer / "package.json").read_text())["exports"]["."]["import"]).as_uri()
    script = FIREFOX.replace("PUPPETEER", entry).replace("SHOWN", SHOWN)
    command = ["node", "--input-type=module", "--eval", script, server.address, program, str(tmp_path), *texts]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    finally:
        server.shutdown()
        server.server_close()
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    for text, shown in zip(texts, found["before"], strict=True):
        assert_values_are_those_of_python(text, shown, 2)
    assert found["played"]["written"] == [*"1992-10-12", "end"]
    assert "Died: its best continuation had" in found["words"]
    assert all(token in found["words"] for token in found["followed"]["written"])
    assert found["after"]["translation"] != found["played"]["translation"] in found["after"]["effect"]
    assert not found["errors"]
    assert not [url for url in found["urls"] if url.startswith("http") and not url.startswith(server.address)]
