import { AttentionMap } from "./map.js";

const PAUSE = 120; // milliseconds without a keystroke before a text is translated
const element = (id) => document.getElementById(id);
const [source, translation, status] = ["source", "translation", "status"].map(element);

// ── the worker ──

const worker = new Worker("worker.js");

/** Calls a method of the worker's translator; one call at a time. */
function ask(method, argument) {
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data: { result, error } }) => (error === undefined ? resolve(result) : reject(new Error(error)));
    worker.onerror = (event) => reject(new Error(event.message || "worker.js could not be loaded"));
    worker.postMessage({ method, argument });
  });
}

function fail(error) {
  status.hidden = false;
  status.className = "problem";
  status.textContent = `The translator failed: ${error.message}`;
  throw error;
}

// ── what is shown, and what should be ──

let settings = null;
let busy = false;
let attention = null;
const shown = { text: null, language: null, choice: null };
const wanted = { text: "", language: null, choice: 0 };
const map = new AttentionMap(element("map"), (text) => (element("weight").textContent = text));

/** Asks the worker for one thing at a time, until all that is wanted is shown. */
async function update() {
  if (busy || !settings) return;
  busy = true;
  try {
    while (Object.keys(wanted).some((key) => wanted[key] !== shown[key])) {
      const { text, language, choice } = wanted;
      if (text !== shown.text || language !== shown.language) {
        const answer = await ask("translate", { text, language });
        showTranslation(text, language, answer);
        Object.assign(shown, { text, language, choice: null });
        wanted.choice = Math.max(answer.best, 0);
      } else {
        const possible = settings.heads.length && element("hypotheses").childElementCount > choice;
        attention = possible ? await ask("attend", choice) : null;
        showAttention();
        shown.choice = choice;
      }
    }
  } catch (error) {
    fail(error);
  } finally {
    busy = false;
  }
}

/** The best translation that keeps all placeholders; if there is none, the text itself and what is wrong. */
function showTranslation(of, language, { hypotheses, best, tokens, cut, milliseconds }) {
  const kept = hypotheses.length > 0 && best < 0;
  translation.textContent = kept ? of : (hypotheses[best]?.text ?? "");
  translation.lang = kept ? "" : (language ?? "");
  Object.assign(translation.dataset, { of, language });
  element("kept").hidden = !kept;
  element("kept").textContent = kept ? `Not translated, since the translation ${hypotheses[0].problem}.` : "";
  element("time").textContent = hypotheses.length ? `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms` : "";
  element("cut").hidden = !cut;
  element("cut").textContent = `The last ${cut} of ${tokens} tokens were cut off: this model reads at most ${tokens - cut}.`;
  element("several").hidden = settings.n_best < 2 || !hypotheses.length;
  const choices = hypotheses.map((hypothesis, number) => choice(hypothesis, number, number === Math.max(best, 0)));
  element("hypotheses").replaceChildren(...choices);
}

/** A hypothesis to choose; one with a problem says so. */
function choice({ text, problem, score }, number, checked) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  Object.assign(input, { type: "radio", name: "hypothesis", checked });
  input.addEventListener("change", () => {
    wanted.choice = number;
    update();
  });
  const words = document.createElement("span");
  Object.assign(words, { textContent: text, dir: "auto", className: problem && "flawed", title: problem });
  const value = document.createElement("data");
  value.value = score;
  value.textContent = score.toFixed(2).replace("-", "−");
  label.append(input, words, value);
  return label;
}

function showAttention() {
  element("attention").hidden = !attention;
  if (!attention) return;
  const heads = element("head").value.split(",").map(Number);
  const mean = (row, column) => heads.reduce((sum, head) => sum + attention.maps[head][row][column], 0) / heads.length;
  const weights = attention.rows.map((_, row) => attention.columns.map((_, column) => mean(row, column)));
  map.show(attention.rows, attention.columns, weights);
}

/** Options for the mean of each layer and for each head; the value lists the heads, counted over all layers. */
function listHeads() {
  let first = 0;
  settings.heads.forEach((count, layer) => {
    const numbers = Array.from({ length: count }, (_, n) => first + n);
    const name = settings.heads.length > 1 ? `layer ${layer + 1}, ` : "";
    if (count > 1) element("head").add(new Option(`${name}mean`, numbers.join()));
    numbers.forEach((head, n) => element("head").add(new Option(`${name}head ${n + 1}`, head)));
    first += count;
  });
  const last = settings.heads.at(-1);
  element("head").selectedIndex = element("head").length - (last > 1 ? last + 1 : 1);
  element("head").addEventListener("change", showAttention);
}

/** A menu of languages, by name. The address of the page remembers the choice. */
function listLanguages() {
  const { languages, target_language: usual } = settings;
  wanted.language = usual ?? null;
  if (languages.length < 2) return;
  const address = new URL(location.href);
  const preferred = [address.searchParams.get("to"), usual, ...navigator.languages.map((tag) => tag.split("-")[0])];
  const menu = element("language");
  const options = languages.map((code) => new Option(languageName(code), code));
  menu.replaceChildren(...options.sort((a, b) => a.text.localeCompare(b.text)));
  wanted.language = menu.value = preferred.find((code) => languages.includes(code)) ?? options[0].value;
  menu.addEventListener("change", () => {
    address.searchParams.set("to", (wanted.language = menu.value));
    history.replaceState(null, "", address);
    update();
  });
  element("languages").hidden = false;
}

/** "German" for de, or the code itself if it is none that the browser knows. */
function languageName(code) {
  try {
    return new Intl.DisplayNames("en", { type: "language" }).of(code.replaceAll("_", "-"));
  } catch {
    return code;
  }
}

function listExamples() {
  const buttons = settings.examples.map((text) => {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: text });
    button.addEventListener("click", () => {
      source.value = text;
      read();
    });
    return button;
  });
  element("examples").replaceChildren(...buttons);
  element("examples").hidden = !buttons.length;
}

/** A text is one sentence: line breaks count as spaces. */
function read() {
  wanted.text = source.value.replace(/\s*\n\s*/g, " ");
  update();
}

let timer = 0;
source.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(read, PAUSE);
});

try {
  settings = await ask("settings");
} catch (error) {
  fail(error);
}
document.title = element("title").textContent = settings.title;
listLanguages();
listHeads();
listExamples();
element("explain").hidden = !settings.explain;
status.hidden = true;
source.value ||= settings.examples[0] ?? "";
read();
