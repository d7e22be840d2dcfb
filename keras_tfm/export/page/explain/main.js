// Puts the parts of the page together: `worker`, which explain.html starts, computes; each part shows what it found.
import { Beam } from "./beam.js";
import { Decoder } from "./decoder.js";
import { Encoder } from "./encoder.js";
import { Heads } from "./heads.js";
import { showEmbeddings, showText } from "./inputs.js";
import { logSoftmax } from "./search.js";
import { element } from "./shared.js";

const PAUSE = 150; // milliseconds without a keystroke before a text is read
const LONG = 24; // tokens of a text whose matrices get the whole width
const address = new URL(location.href);
const parts = {};
let settings = null;
let wanted = 0; // number of the last change
let shown = 0;
let busy = false;
let found = null;
let original = { key: null }; // what the model finds with all heads and positions

/** Calls a method of the worker; one call at a time. */
function ask(method, argument) {
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data: { result, error } }) => (error === undefined ? resolve(result) : reject(new Error(error)));
    if (worker.problem) return reject(new Error(worker.problem));
    worker.onerror = (event) => reject(new Error(event.message || "explain/worker.js could not be loaded"));
    worker.postMessage({ method, argument });
  });
}

function fail(error) {
  showProblem(`The page failed: ${error.message}`); // of explain.html
  throw error;
}

/** Computes until all that is wanted is shown. `task` replaces the whole computation by a part of it. */
async function update(task = null) {
  wanted++;
  if (busy) return;
  busy = true;
  try {
    while (shown !== wanted) {
      const change = wanted;
      await (task ?? compute)();
      task = null;
      shown = change;
    }
    document.body.dataset.shown = element("source").value;
  } catch (error) {
    fail(error);
  } finally {
    busy = false;
  }
}

async function compute() {
  const request = {
    text: element("source").value.replace(/\s*\n\s*/g, " "),
    language: element("language").value || settings.target_language || null,
    options: { ...parts.beam.options, penalty: settings.penalty, earlyStopping: settings.early_stopping },
  };
  document.body.classList.toggle("empty", !request.text.trim()); // hides all parts
  if (!request.text.trim()) {
    element("translation").textContent = element("now").textContent = element("time").textContent = "";
    element("cut").hidden = true;
    return;
  }
  const { switches } = parts.heads;
  const positions = element("positions").checked;
  const complete = parts.heads.allOn && positions;
  const key = JSON.stringify(request);
  if (!complete && original.key !== key) {
    const unchanged = { ...request, positions: true, switches: parts.heads.original };
    original = summary(key, await ask("translate", unchanged));
  }
  found = await ask("translate", { ...request, positions, switches });
  document.body.classList.toggle("long", found.tokens.length > LONG);
  showTranslation();
  showText(found);
  showEmbeddings(found, settings);
  parts.encoder.show(found);
  parts.beam.show(found);
  if (!found.ended.length) return;
  await decode(found.nodes[found.ended[0]].ids);
  if (complete) original = summary(key, found);
  const now = complete ? original.share : await shareOf(original.ids, switches);
  parts.heads.showEffect({ original: original.text, text: found.texts[0], before: original.share, now, complete });
}

async function decode(ids) {
  parts.decoder.stop();
  parts.decoder.show(await ask("decode", { ids, switches: parts.heads.switches }));
  element("other").hidden = ids === found.nodes[found.ended[0]]?.ids;
}

/** The best translation that a search found, and its probability. */
function summary(key, { nodes, ended, texts }) {
  const best = nodes[ended[0]] ?? { ids: [], score: 0 };
  return { key, ids: best.ids, text: texts[0] ?? "", share: Math.exp(best.score) };
}

/** The probability that the model gives to a translation. */
async function shareOf(ids, switches) {
  const { logits } = await ask("decode", { ids, switches });
  return Math.exp(ids.reduce((sum, id, step) => sum + logSoftmax(logits[step])[id], 0));
}

function showTranslation() {
  const changed = !parts.heads.allOn || !element("positions").checked;
  element("translation").textContent = element("now").textContent = found.texts[0] ?? "";
  element("translation").lang = element("language").value;
  element("time").dataset.shown = performance.now();
  element("time").textContent = `${found.milliseconds.toFixed(0)} ms`;
  element("changed").hidden = !changed;
  element("changed").firstElementChild.textContent = "Heads or positions are switched off.";
  const most = settings.explain.length - 1;
  const ofText = `The last ${found.cut} tokens were cut off: this page shows at most ${most}.`;
  const ofTranslation = "The translation was cut off: it is longer than this page shows.";
  const cut = [...(found.cut ? [ofText] : []), ...(found.nodes[found.ended[0]]?.cut ? [ofTranslation] : [])];
  element("cut").hidden = !cut.length;
  element("cut").textContent = cut.join(" ");
}

/** Marks in the menu the part that is on the screen. */
function showPlace() {
  const cards = [...document.querySelectorAll(".card")];
  const end = innerHeight + scrollY > document.documentElement.scrollHeight - 4;
  const above = cards.filter((card) => card.getBoundingClientRect().top < innerHeight / 3);
  const here = end ? cards.at(-1) : (above.at(-1) ?? cards[0]);
  for (const link of document.querySelectorAll("nav a")) {
    link.ariaCurrent = link.hash === `#${here.id}` ? "step" : null;
  }
}

function listLanguages() {
  const { languages, target_language: usual } = settings;
  if (languages.length < 2) return;
  const names = new Intl.DisplayNames("en", { type: "language" });
  const options = languages.map((code) => new Option(names.of(code.replaceAll("_", "-")), code));
  element("language").replaceChildren(...options.sort((a, b) => a.text.localeCompare(b.text)));
  const preferred = [address.searchParams.get("to"), usual, ...navigator.languages.map((tag) => tag.split("-")[0])];
  element("language").value = preferred.find((code) => languages.includes(code)) ?? languages[0];
  element("language").addEventListener("change", () => update());
  element("languages").hidden = false;
}

function listExamples() {
  const buttons = d3.select("#examples").selectAll("button").data(settings.examples).join("button");
  buttons.attr("type", "button").text((text) => text);
  buttons.on("click", (_, text) => {
    element("source").value = text;
    update();
  });
  element("examples").hidden = !settings.examples.length;
}

function listen() {
  let timer = 0;
  element("source").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(update, PAUSE);
  });
  element("positions").addEventListener("change", () => update());
  element("restore").addEventListener("click", () => {
    element("positions").checked = true;
    parts.heads.restore();
    update();
  });
  const redraw = () => found && (showEmbeddings(found, settings), parts.encoder.show(found), parts.beam.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("scroll", showPlace, { passive: true });
  element("best").addEventListener("click", () => update(() => decode(found.nodes[found.ended[0]].ids)));
  let width = innerWidth;
  addEventListener("resize", () => width !== innerWidth && ((width = innerWidth), redraw()));
}

async function start() {
  settings = await ask("settings");
  document.title = `How “${settings.title}” translates`;
  element("title").textContent = `“${settings.title}”`;
  parts.encoder = new Encoder(settings);
  parts.decoder = new Decoder(settings);
  parts.beam = new Beam(settings, (ids) => update(() => decode(ids)), () => update());
  parts.heads = new Heads(settings, () => update());
  const joined = ["sinusoidal", "learned", "index"].includes(settings.explain.positions);
  for (const id of ["positions-label", "positions-hint"]) element(id).hidden = !joined;
  listLanguages();
  listExamples();
  listen();
  element("source").value = address.searchParams.get("text") ?? settings.examples[0] ?? "";
  await update();
  element("status").hidden = true;
  if (location.hash) document.querySelector(location.hash)?.scrollIntoView();
  showPlace();
}

start().catch(fail);
