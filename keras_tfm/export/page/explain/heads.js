// Part 6: switches for all heads.
import { element, percent } from "./shared.js";

const NAMES = {
  encoder: "Encoder, self-attention",
  self: "Decoder, self-attention",
  memory: "Decoder, cross-attention",
};

export class Heads {
  /** `change()` is called when a switch has been moved. */
  constructor(settings, change) {
    const { layers, heads } = settings.explain;
    const on = (count) => Array.from({ length: count }, () => Array(heads).fill(1));
    this.switches = { encoder: on(layers[0]), self: on(layers[1]), memory: on(layers[1]) };
    this.change = change;
    this.show();
  }

  get allOn() {
    return Object.values(this.switches).every((rows) => rows.flat().every(Boolean));
  }

  /** The switches with all heads on. */
  get original() {
    const on = (rows) => rows.map((row) => row.map(() => 1));
    return Object.fromEntries(Object.entries(this.switches).map(([name, rows]) => [name, on(rows)]));
  }

  restore() {
    this.switches = this.original;
    this.show();
  }

  show() {
    const groups = d3.select("#switches").selectAll("fieldset").data(Object.entries(this.switches)).join("fieldset");
    groups.selectAll("legend").data(([name]) => [name]).join("legend").text((name) => NAMES[name]);
    const rows = groups
      .selectAll("div")
      .data(([name, layers]) => layers.map((row, layer) => ({ name, layer, row })))
      .join("div");
    const all = rows.selectAll("button.layer").data((row) => [row]).join("button");
    all
      .attr("class", "layer")
      .attr("type", "button")
      .text(({ layer }) => `layer ${layer + 1}`)
      .attr("aria-label", ({ name, layer }) => `${NAMES[name]}, all heads of layer ${layer + 1}`)
      .on("click", (_, { row }) => this.#set(row, row.some(Boolean) ? 0 : 1));
    const heads = ({ name, layer, row }) => row.map((on, head) => ({ name, layer, row, on, head }));
    rows
      .selectAll("button.head")
      .data(heads)
      .join("button")
      .attr("class", "head")
      .attr("type", "button")
      .attr("aria-pressed", ({ on }) => Boolean(on))
      .attr("aria-label", ({ name, layer, head }) => `${NAMES[name]}, layer ${layer + 1}, head ${head + 1}`)
      .text(({ head }) => head + 1)
      .on("click", (_, { row, head, on }) => this.#set(row, on ? 0 : 1, head));
  }

  #set(row, value, head) {
    row.forEach((_, n) => (head === undefined || head === n) && (row[n] = value));
    this.show();
    this.change();
  }

  /** The translation with all heads and positions, and now; `before` and `now` are probabilities of the first. */
  showEffect({ original, text, before, now, complete }) {
    const changed = original !== text;
    const words = changed ? "The translation changes:" : "The translation stays the same.";
    const sure = `The model gave “${original}” the probability ${percent(before)}; now it gives it ${percent(now)}.`;
    const all = ["All heads are on. Try a whole layer of cross-attention, then a single head."];
    const more = "Try a longer text, or one whose meaning depends on the order.";
    const lines = complete ? all : [words, ...(changed ? [`${original} → ${text || "nothing"}`] : []), sure];
    const places = d3.select(element("effect")).selectAll("p").data(lines).join("p");
    places.text((line) => line).attr("class", (_, n) => (changed && n === 1 ? "difference" : ""));
    const positions = d3.select("#positions-effect").attr("hidden", element("positions").checked ? true : null);
    positions.text(`Without positions: ${[...lines, ...(changed ? [] : [more])].join(" ")}`);
  }
}
