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
const shown = { text: null, choice: null };
const wanted = { text: "", choice: 0 };
const map = new AttentionMap(element("map"), (text) => (element("weight").textContent = text));

/** Asks the worker for one thing at a time, until all that is wanted is shown. */
async function update() {
  if (busy || !settings) return;
  busy = true;
  try {
    while (wanted.text !== shown.text || wanted.choice !== shown.choice) {
      const { text, choice } = wanted;
      if (text !== shown.text) {
        showTranslation(text, await ask("translate", text));
        Object.assign(shown, { text, choice: null });
        wanted.choice = 0;
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

function showTranslation(text, { hypotheses, tokens, cut, milliseconds }) {
  translation.textContent = hypotheses[0]?.text ?? "";
  translation.dataset.of = text;
  element("time").textContent = hypotheses.length ? `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms` : "";
  element("cut").hidden = !cut;
  element("cut").textContent = `The last ${cut} of ${tokens} tokens were cut off: this model reads at most ${tokens - cut}.`;
  element("several").hidden = settings.n_best < 2 || !hypotheses.length;
  element("hypotheses").replaceChildren(...hypotheses.map(hypothesis));
}

function hypothesis({ text, score }, number) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  Object.assign(input, { type: "radio", name: "hypothesis", checked: number === 0 });
  input.addEventListener("change", () => {
    wanted.choice = number;
    update();
  });
  const words = document.createElement("span");
  words.textContent = text;
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
listHeads();
listExamples();
status.hidden = true;
source.value ||= settings.examples[0] ?? "";
read();
