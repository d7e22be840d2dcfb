// Runs the model away from the page. A classic worker, since LiteRT.js calls `importScripts`, which modules do not have.
"use strict";

const [START, END] = [1, 2];
const TOP = 10; // next tokens to show
const ROOT = new URL("../", self.location.href).href;
const INK = /[^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/; // as in ../worker.js

class Explainer {
  static async load() {
    const content = file("explain.tflite"); // the largest file, before all others
    const runtime = `${ROOT}runtime/`;
    // The runtime logs everything as an error.
    const printErr = (line) => (/^(INFO|WARNING)/.test(line) ? console.debug : console.error)(line);
    self.Module = { locateFile: (name) => runtime + name, printErr };
    const names = ["runtime/litert.js", "tokenizer.js", "protected.js", "explain/search.js", "explain/pieces.js"];
    const [litert, { loadTokenizer }, { Protection }, search, pieces] = await Promise.all(
      names.map((name) => import(ROOT + name)),
    );
    const tokenizer = (side) => loadTokenizer((name) => file(`${side}_tokenizer/${name}`));
    const [settings, source, target] = await Promise.all([
      file("translator.json").then((bytes) => JSON.parse(new TextDecoder().decode(bytes))),
      tokenizer("source"),
      tokenizer("target"),
      litert.loadLiteRt(runtime),
    ]);
    const model = await litert.loadAndCompile(await content, { accelerator: "wasm" });
    const protection = settings.placeholders ? new Protection(settings.expressions, settings.placeholders) : null;
    return new Explainer({ Tensor: litert.Tensor, model, settings, source, target, protection, search, pieces });
  }

  constructor(parts) {
    Object.assign(this, parts, { length: parts.settings.explain.length, row: [], masked: null, memory: null });
  }

  /** Encodes a text and searches its translation; see `beamSearch` for the options, and `heads` in `switches`. */
  async translate({ text, language, positions, switches, options }) {
    const begin = performance.now();
    this.masked = this.protection?.mask(text) ?? { text, replacements: [] };
    const tag = language ? `>>${language}<<` : "";
    const ids = INK.test(this.masked.text) ? this.source.encode(tag + this.masked.text) : [];
    const cut = Math.max(ids.length - this.length + 1, 0);
    this.row = [...ids.slice(0, this.length - 1), END];
    const inputs = { ids: this.#padded(this.row), positions: this.#tensor(Int32Array, [+positions]) };
    const outputs = await this.#run("encode", { ...inputs, heads: this.#heads(switches.encoder) });
    const count = this.row.length;
    this.memory = outputs.states.slice(-outputs.embeddings.length);
    const found = await this.#search(outputs, [...switches.self, ...switches.memory], options);
    const finished = found.ended.map((number) => this.target.decode(found.nodes[number].ids));
    return {
      ...found,
      tokens: this.row.map((id, n) => this.pieces.describe(this.source, id, this.#label(this.source, id), n)),
      labels: found.nodes.map(({ id }) => this.#label(this.target, id)),
      texts: finished.map((line) => this.protection?.restore(this.masked, line).text ?? line),
      encoder: { count, ...pick(outputs, "embeddings", "states", "query", "key", "value", "scores", "weights") },
      cut,
      milliseconds: performance.now() - begin,
    };
  }

  /** All that the decoder computes for a translation (ids), which it reads at once: each row is one step. */
  async decode({ ids, switches }) {
    const target = this.#padded([START, ...ids.slice(0, -1)]);
    const memory = this.#tensor(Float32Array, this.memory, [1, this.length, this.memory.length / this.length]);
    const heads = this.#heads([...switches.self, ...switches.memory]);
    const outputs = await this.#run("decode", { source: this.#padded(this.row), memory, target, heads });
    const size = outputs.logits.length / this.length;
    const rows = ids.map((_, step) => outputs.logits.slice(step * size, (step + 1) * size));
    const label = (id) => this.#label(this.target, id);
    const named = ({ id }) => ({ id, label: label(id) });
    const top = rows.map((logits) => this.search.best(logits, TOP, (id) => id > 1).map(named));
    const source = this.row.map((id) => this.#label(this.source, id));
    const weights = pick(outputs, "self_scores", "self_weights", "memory_scores", "memory_weights");
    return { ...weights, logits: rows, top, ids, labels: ids.map(label), source };
  }

  async #search(outputs, heads, options) {
    const { beams, self_cache: shape } = this.settings.explain;
    const fill = (list) => Int32Array.from({ length: beams }, (_, n) => list[n] ?? list[0]);
    let cache = this.#tensor(Float32Array, new Float32Array(shape.reduce((a, b) => a * b)), shape);
    const memory = [shape[0], ...shape.slice(2)];
    const step = async (tokens, position, parents) => {
      const inputs = {
        tokens: this.#tensor(Int32Array, fill(tokens), [beams, 1]),
        position: this.#tensor(Int32Array, [position]),
        parents: this.#tensor(Int32Array, fill(parents)),
        heads: this.#heads(heads),
        source: this.#padded(this.row),
        memory_cache: this.#tensor(Float32Array, outputs.memory_cache, memory),
        self_cache: cache,
      };
      const next = await this.#run("step", inputs, "self_cache");
      cache = next.self_cache;
      const size = next.logits.length / beams;
      return tokens.map((_, row) => next.logits.subarray(row * size, (row + 1) * size));
    };
    const longest = Math.min(2 * this.row.length + 16, this.length); // as keras_tfm/text/base.py bounds it
    const rules = new this.search.Rules(this.settings, this.row, longest);
    const found = await this.search.beamSearch(step, rules, options);
    cache.delete();
    return found;
  }

  /** A token as a short text; placeholders as they are in the text. */
  #label(tokenizer, id) {
    const label = this.pieces.label(tokenizer, id);
    return this.protection?.fill(this.masked.replacements, label) || label;
  }

  #padded(ids) {
    const row = new Int32Array(this.length);
    row.set(ids.slice(0, this.length));
    return this.#tensor(Int32Array, row, [1, this.length]);
  }

  #heads(rows) {
    return this.#tensor(Float32Array, rows.flat(), [rows.length, rows[0].length]);
  }

  #tensor(Type, values, shape = [values.length]) {
    return new this.Tensor(Type.from(values), shape);
  }

  /** Runs a signature: arrays, or a tensor for the output named `kept`. */
  async #run(name, inputs, kept) {
    const outputs = await this.model.run(name, inputs);
    for (const [key, tensor] of Object.entries(outputs)) {
      if (key === kept) continue;
      outputs[key] = await tensor.data();
      tensor.delete();
    }
    Object.values(inputs).forEach((tensor) => tensor.delete());
    return outputs;
  }
}

function pick(object, ...names) {
  return Object.fromEntries(names.map((name) => [name, object[name]]));
}

async function file(name) {
  const response = await fetch(ROOT + name);
  if (!response.ok) throw new Error(`${name}: the server answered ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

const loading = Explainer.load();

// Each message is { method, argument }; the answer has a `result` or an `error`.
self.onmessage = async ({ data: { method, argument } }) => {
  try {
    const explainer = await loading;
    const result = method === "settings" ? explainer.settings : await explainer[method](argument);
    self.postMessage({ result });
  } catch (error) {
    self.postMessage({ error: error?.message ?? String(error) });
  }
};
