// Runs the model away from the page. A classic worker, since LiteRT.js calls `importScripts`, which modules do not have.
"use strict";

const [START, END] = [1, 2];
const RETRY = 4; // hypotheses among which one that keeps all placeholders is looked for, as in Python
// What Python's `str.strip` leaves over.
const INK = /[^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/;

class Translator {
  static async load() {
    const runtime = new URL("runtime/", self.location.href).href;
    // The runtime logs everything as an error.
    const printErr = (line) => (/^(INFO|WARNING)/.test(line) ? console.debug : console.error)(line);
    self.Module = { locateFile: (name) => runtime + name, printErr };
    const modules = ["./runtime/litert.js", "./tokenizer.js", "./protected.js"].map((name) => import(name));
    const [litert, { loadTokenizer }, { Protection }] = await Promise.all(modules);
    const tokenizer = (side) => loadTokenizer((name) => file(`${side}_tokenizer/${name}`));
    const [settings, content, source] = await Promise.all([
      file("translator.json").then((bytes) => JSON.parse(new TextDecoder().decode(bytes))),
      file("translator.tflite"),
      tokenizer("source"),
      litert.loadLiteRt(runtime),
    ]);
    const checksum = (side) => settings.files[`${side}_tokenizer/tokenizer.json`];
    const target = checksum("source") === checksum("target") ? source : await tokenizer("target");
    const model = await litert.loadAndCompile(content, { accelerator: "wasm" });
    const protection = settings.placeholders ? new Protection(settings.expressions, settings.placeholders) : null;
    const translator = new Translator(litert.Tensor, model, settings, source, target, protection);
    await translator.#run("translate", { ids: [[END], settings.max_length] }); // lets the browser compile
    return translator;
  }

  constructor(Tensor, model, settings, source, target, protection) {
    Object.assign(this, { Tensor, model, settings, source, target, protection, masked: null, row: [], found: [] });
  }

  /**
   * The translations of a text: `hypotheses`, of which `best` is the number of the first that keeps all placeholders,
   * or -1; the number of tokens of the text, how many of them were cut off, and the time it took.
   */
  async translate({ text, language }) {
    const begin = performance.now();
    const tag = language ? `>>${language}<<` : "";
    this.masked = this.protection?.mask(text) ?? { text, replacements: [] };
    const ids = INK.test(this.masked.text) ? this.source.encode(tag + this.masked.text) : [];
    const maxTokens = this.settings.max_length - 1;
    this.row = ids.length ? [...ids.slice(0, maxTokens), END] : [];
    this.found = [];
    let scores = [0];
    if (ids.length) {
      const outputs = await this.#run("translate", { ids: [this.row, this.settings.max_length] });
      const size = this.settings.longest;
      scores = Array.from(outputs.scores).filter((score) => score > -1e8); // lower: no hypothesis
      this.found = scores.map((_, n) => Array.from(outputs.ids.slice(n * size, n * size + outputs.lengths[n])));
    }
    const hypotheses = this.found.map((row, n) => ({ ...this.#restored(this.target.decode(row)), score: scores[n] }));
    const best = hypotheses.slice(0, RETRY).findIndex(({ problem }) => !problem);
    const cut = Math.max(ids.length - maxTokens, 0);
    return { hypotheses, best, tokens: ids.length, cut, milliseconds: performance.now() - begin };
  }

  /** A translation, as { text, problem }, with what stands in place of its slots. */
  #restored(text) {
    const restored = this.protection?.restore(this.masked, text) ?? { text, problem: "" };
    return { ...restored, problem: this.masked.problem ?? restored.problem };
  }

  /** What each token of a hypothesis attends to: labels of rows and columns, and weights by head, row and column. */
  async attend(number) {
    const rows = this.found[number];
    const { max_length: width, longest, heads } = this.settings;
    const target = [[START, ...rows.slice(0, -1)], longest];
    const { weights } = await this.#run("attention", { source: [this.row, width], target });
    const count = heads.reduce((a, b) => a + b, 0);
    const maps = Array.from({ length: count }, (_, head) =>
      rows.map((_, row) => weights.slice((head * longest + row) * width, (head * longest + row) * width + this.row.length)),
    );
    const shown = (label) => this.protection?.fill(this.masked.replacements, label) || label;
    const labels = (tokenizer, ids) => ids.map((id) => shown(tokenizer.label(id)));
    return { rows: labels(this.target, rows), columns: labels(this.source, this.row), maps };
  }

  /** Runs a signature; each input is a list of ids and the width to pad it to. */
  async #run(name, inputs) {
    const tensors = {};
    for (const [key, [ids, width]] of Object.entries(inputs)) {
      const padded = new Int32Array(width);
      padded.set(ids);
      tensors[key] = new this.Tensor(padded, [1, width]);
    }
    const outputs = await this.model.run(name, tensors);
    const arrays = {};
    for (const [key, tensor] of Object.entries(outputs)) {
      arrays[key] = await tensor.data();
      tensor.delete();
    }
    Object.values(tensors).forEach((tensor) => tensor.delete());
    return arrays;
  }
}

async function file(name) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name}: the server answered ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

const loading = Translator.load();

// Each message is { method, argument }; the answer has a `result` or an `error`.
self.onmessage = async ({ data: { method, argument } }) => {
  try {
    const translator = await loading;
    const result = method === "settings" ? translator.settings : await translator[method](argument);
    self.postMessage({ result });
  } catch (error) {
    self.postMessage({ error: error?.message ?? String(error) });
  }
};
