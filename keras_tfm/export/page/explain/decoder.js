// Part 4: the decoder, step by step.
import { AttentionMap } from "../map.js";
import { logSoftmax } from "./search.js";
import { element, matrix, number, percent, showPlaying, showTokens, still } from "./shared.js";

const PAUSE = 900; // milliseconds for each step of the player

export class Decoder {
  constructor(settings) {
    const { layers, heads, length } = settings.explain;
    Object.assign(this, { layers: layers[1], heads, size: length, found: null, step: 0, timer: 0 });
    this.memory = new AttentionMap(element("memory-map"), (words) => (element("memory-words").textContent = words));
    this.own = new AttentionMap(element("self-map"), (words) => (element("self-words").textContent = words));
    this.#listHeads();
    const moves = { first: () => 0, previous: () => this.step - 1, next: () => this.step + 1 };
    for (const [id, move] of Object.entries(moves)) {
      element(id).addEventListener("click", () => {
        this.stop();
        this.go(move());
      });
    }
    element("step").addEventListener("input", () => this.go(element("step").value - 1));
    element("play").addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    element("temperature").addEventListener("input", () => this.#showBars());
  }

  #listHeads() {
    const menu = element("decoder-head");
    for (let layer = 0; layer < this.layers; layer++) {
      menu.add(new Option(`layer ${layer + 1}, mean of all heads`, `${layer},mean`));
      for (let head = 0; head < this.heads; head++) {
        menu.add(new Option(`layer ${layer + 1}, head ${head + 1}`, `${layer},${head}`));
      }
    }
    menu.value = `${this.layers - 1},mean`;
    menu.addEventListener("change", () => this.#showStep());
  }

  /** Shows what the worker's `decode` found; the step stays where it is. */
  show(found) {
    this.found = found;
    element("step").max = found.ids.length;
    this.go(this.step);
  }

  go(step) {
    this.step = Math.min(Math.max(step, 0), this.found.ids.length - 1);
    element("step").value = this.step + 1;
    this.#showStep();
  }

  play() {
    if (this.step >= this.found.ids.length - 1) this.go(0);
    showPlaying(element("play"), true, "Play");
    const tick = () => {
      if (this.step >= this.found.ids.length - 1) return this.stop();
      this.go(this.step + 1);
      this.timer = setTimeout(tick, PAUSE);
    };
    this.timer = setTimeout(tick, still() ? 0 : PAUSE);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
    showPlaying(element("play"), false, "Play");
  }

  #showStep() {
    if (!this.found) return;
    const { labels, source, ids } = this.found;
    const state = (n) => (n < this.step ? "" : n === this.step ? "current" : "future");
    showTokens(element("written"), labels.map((label, n) => ({ label, state: state(n), n })), ({ n }, event) => {
      if (event.type === "click") this.go(n);
    });
    element("step-words").textContent = `step ${this.step + 1} of ${ids.length}: writes “${labels[this.step]}”`;
    const [layer, head] = element("decoder-head").value.split(",");
    const chosen = head === "mean" ? head : Number(head);
    const part = (values, columns) => matrix(values, this.size, this.heads, Number(layer), chosen, ids.length, columns);
    const [memory, own] = [part(this.found.memory_weights, source.length), part(this.found.self_weights, ids.length)];
    const seen = (label, weight) => ({ label, weight, note: `${Math.round(100 * weight)} %` });
    showTokens(element("looks"), source.map((label, n) => seen(label, memory[this.step][n])));
    const before = ["start", ...labels.slice(0, -1)];
    const hidden = (label) => ({ label, state: "future", note: "−∞", words: `${label}: hidden by the mask` });
    const looked = (label, n) => (n > this.step ? hidden(label) : seen(label, own[this.step][n]));
    showTokens(element("looks-back"), before.map(looked));
    this.memory.show(labels, source, memory, { row: this.step });
    this.own.show(labels, before, own, { row: this.step, hidden: (row, column) => column > row });
    this.#showBars();
  }

  /** The ten most probable next tokens, at the temperature of the slider. */
  #showBars() {
    if (!this.found) return;
    const temperature = Number(element("temperature").value);
    element("temperature-value").textContent = temperature.toFixed(1);
    const shares = logSoftmax(this.found.logits[this.step], temperature).map(Math.exp);
    const rows = this.found.top[this.step].map(({ id, label }) => ({ id, label, share: shares[id] }));
    const written = this.found.ids[this.step];
    const items = d3.select("#bars").selectAll("li").data(rows).join("li");
    items.attr("class", ({ id }) => (id === written ? "written" : "")).html("");
    items.append("span").attr("class", "name").text(({ label }) => label);
    items.append("span").attr("class", "bar").append("span").style("width", ({ share }) => `${100 * share}%`);
    items.append("data").attr("value", ({ share }) => share).text(({ share }) => percent(share));
    items.attr("title", ({ id, share }) => `id ${id}, log-probability ${number(Math.log(share))}`);
  }
}
