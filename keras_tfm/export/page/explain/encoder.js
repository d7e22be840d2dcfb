// Part 3: the attention of the encoder.
import { AttentionMap } from "../map.js";
import { drawSmall, drawStrips, element, matrix, number, percent, unit } from "./shared.js";

const SIDE = 92; // height of the arcs on each side of the tokens
const BAND = 15; // half the height of the tokens between them

export class Encoder {
  constructor(settings) {
    const { layers, heads, length, score, positions, window } = settings.explain;
    Object.assign(this, { score, window, biased: ["relative", "alibi"].includes(positions) });
    Object.assign(this, { layers: layers[0], heads, size: length, layer: 0, head: 0, kind: "weights", found: null });
    this.map = new AttentionMap(element("encoder-map"), (words, cell) => this.#read(words, cell));
    for (const input of document.getElementsByName("encoder-kind")) {
      input.addEventListener("change", () => {
        this.kind = input.value;
        this.#showHead();
      });
    }
  }

  show(found) {
    this.found = found;
    this.#showHeads();
    this.#showHead();
  }

  #matrix(values, layer, head) {
    const { count } = this.found.encoder;
    return matrix(values, this.size, this.heads, layer, head, count, count);
  }

  /** All heads at a glance. */
  #showHeads() {
    const all = d3.cross(d3.range(this.layers), d3.range(this.heads));
    const few = d3.greatest(d3.range(1, 5).filter((columns) => this.heads % columns === 0)); // on a phone
    const many = this.heads > 8 ? 8 : this.heads * Math.floor(8 / this.heads);
    d3.select("#encoder-heads").style("--few", few === 1 ? 4 : few).style("--many", many);
    const labels = d3.select("#encoder-heads").selectAll("label").data(all).join((enter) => {
      const label = enter.append("label");
      label.append("input").attr("type", "radio").attr("name", "encoder-head");
      label.append("canvas").attr("aria-hidden", true);
      label.append("span").text(([layer, head]) => `layer ${layer + 1}, head ${head + 1}`);
      return label;
    });
    labels
      .select("input")
      .property("checked", ([layer, head]) => layer === this.layer && head === this.head)
      .on("change", (_, [layer, head]) => {
        Object.assign(this, { layer, head });
        this.#showHead();
      });
    const { weights } = this.found.encoder;
    const draw = (canvas, layer, head) => drawSmall(canvas, this.#matrix(weights, layer, head));
    labels.select("canvas").each(function ([layer, head]) {
      draw(this, layer, head);
    });
  }

  #showHead() {
    const { encoder, tokens } = this.found;
    const labels = tokens.map(({ label }) => label);
    element("encoder-title").textContent = `Layer ${this.layer + 1}, head ${this.head + 1}`;
    const values = this.#matrix(encoder[this.kind], this.layer, this.head);
    const cells = d3.cross(d3.range(labels.length), d3.range(labels.length)).filter(([q, k]) => q !== k);
    const weights = this.#matrix(encoder.weights, this.layer, this.head);
    const [row, column] = d3.greatest(cells, (a, b) => weights[a[0]][a[1]] - weights[b[0]][b[1]]) ?? [0, 0];
    const [lowest, highest] = d3.extent(values.flat());
    const ofScores = { strength: (x) => (x - lowest) / (highest - lowest || 1), words: (x) => `score ${number(x)}` };
    const hidden = (q, k) => this.window && Math.abs(q - k) >= this.window;
    const options = { hidden, mark: { row, column }, ...(this.kind === "scores" ? ofScores : {}) };
    const ends = this.kind === "scores" ? [number(lowest), number(highest)] : ["0 %", "100 %"];
    d3.select("#encoder-scale").selectAll("span").data(ends).text((end) => end);
    this.map.show(labels, labels, values, options);
    this.#showArcs(labels, null);
    this.#explain(row, column);
    this.#showMask();
  }

  /** The places that the model reads, those of padding crossed out. */
  #showMask() {
    const { count } = this.found.encoder;
    const places = d3.select("#encoder-places").selectAll("i").data(d3.range(this.size)).join("i");
    places.attr("class", (place) => (place < count ? "" : "padding"));
    const others = this.window
      ? `Each token looks only at those that are fewer than ${this.window} places away.`
      : "Nothing else is hidden here. In the decoder, later tokens are, too.";
    element("encoder-mask").textContent =
      `The model reads ${this.size} places at once; the ${this.size - count} after the last token are padding. Their ` +
      `scores are set to −∞ before the softmax, so their weights are 0: nobody looks at them. ${others}`;
  }

  /** Arcs from each token to those that it looks at; those of one token, if one is chosen. */
  #showArcs(labels, chosen) {
    const weights = this.#matrix(this.found.encoder.weights, this.layer, this.head);
    const available = element("encoder-arcs").parentElement.clientWidth / unit();
    const least = labels.slice(0, -1).some((label) => label.length > 2) ? 46 : 18;
    const gap = Math.min(Math.max((available - 20) / labels.length, least), 110);
    const [width, height] = [gap * labels.length + 20, 2 * (SIDE + BAND)];
    const x = (n) => 10 + gap * (n + 0.5);
    const svg = d3.select("#encoder-arcs").attr("width", width * unit()).attr("height", height * unit());
    svg.attr("viewBox", `0 0 ${width} ${height}`);
    svg.attr("aria-label", `Arcs between the tokens of the text, layer ${this.layer + 1}, head ${this.head + 1}`);
    const arcs = d3.cross(d3.range(labels.length), d3.range(labels.length)).filter(([q, k]) => weights[q][k] > 0.05);
    const arc = ([q, k]) => {
      const [ahead, far] = [k > q ? -1 : 1, Math.min(12 + Math.abs(x(q) - x(k)) * 0.45, SIDE - 4)]; // up is ahead
      const [base, top] = [SIDE + BAND + ahead * BAND, SIDE + BAND + ahead * (BAND + 1.3 * far)];
      return `M${x(q)},${base} C${x(q)},${top} ${x(k)},${top} ${x(k)},${base}`;
    };
    const loop = ([q]) => `M${x(q) - 4},${SIDE} C${x(q) - 14},${SIDE - 26} ${x(q) + 14},${SIDE - 26} ${x(q) + 4},${SIDE}`;
    svg
      .selectAll("path")
      .data(arcs)
      .join("path")
      .attr("d", ([q, k]) => (q === k ? loop([q]) : arc([q, k])))
      .attr("class", ([q]) => (chosen === null || q === chosen ? "arc" : "arc faded"))
      .style("stroke-width", ([q, k]) => 0.5 + 4 * weights[q][k])
      .style("opacity", ([q, k]) => (chosen === null || q === chosen ? 0.15 + 0.85 * weights[q][k] : 0.05));
    svg
      .selectAll("text")
      .data(labels)
      .join("text")
      .attr("x", (_, n) => x(n))
      .attr("y", SIDE + BAND + 5)
      .attr("class", (_, n) => (n === chosen ? "chosen" : ""))
      .text((label) => (label.length > Math.max(gap / 7, 3) ? `${label.slice(0, Math.floor(gap / 7) - 1)}…` : label))
      .on("mouseenter click", (event) => this.#showArcs(labels, svg.selectAll("text").nodes().indexOf(event.target)));
    svg.on("mouseleave", () => this.#showArcs(labels, null));
  }

  #read(words, cell) {
    element("encoder-words").textContent = words;
    if (!this.found || !cell) return;
    this.#showArcs(this.found.tokens.map(({ label }) => label), cell.row);
    this.#explain(cell.row, cell.column);
  }

  /** How the number of a cell comes about: query, key and value, score and weight. */
  #explain(row, column) {
    const { encoder, tokens } = this.found;
    const width = encoder.query.length / (this.layers * this.size * this.heads);
    const part = (values, groups, token) => {
      const head = Math.floor(this.head / (this.heads / groups)); // several query heads may share keys and values
      const first = ((this.layer * this.size + token) * groups + head) * width;
      return values.subarray(first, first + width);
    };
    const groups = encoder.key.length / (this.layers * this.size * width);
    const score = this.#matrix(encoder.scores, this.layer, this.head)[row][column];
    const weight = this.#matrix(encoder.weights, this.layer, this.head)[row][column];
    const [query, key] = [tokens[row].label, tokens[column].label];
    const lines = [
      [`“${query}” asks, “${key}” answers:`],
      [`query of “${query}”`, part(encoder.query, this.heads, row)],
      [`key of “${key}”`, part(encoder.key, groups, column)],
      [`${this.#formula(width)} = score ${number(score)}`],
      [`softmax over the row of “${query}” → weight ${percent(weight)}`],
      [`value of “${key}”`, part(encoder.value, groups, column)],
      [`${percent(weight)} of this value goes into what the head writes for “${query}”.`],
    ];
    const places = d3.select("#encoder-cell").selectAll("div.line-of-cell").data(lines).join("div");
    places.attr("class", ([, values]) => `line-of-cell ${values ? "vector" : ""}`).html("");
    places.append("span").text(([words]) => words);
    const canvases = places.filter(([, values]) => values).append("div").append("canvas").attr("aria-hidden", true);
    canvases.each(function ([, values]) {
      drawStrips(this, [values], [""], 2);
    });
  }

  /** How a score comes from a query and a key of so many numbers. */
  #formula(width) {
    const names = { scaled_dot: `query · key / √${width}`, dot: "query · key" };
    const score = names[this.score] ?? `${this.score.replaceAll("_", " ")} score of query and key`;
    return this.biased ? `${score} + position bias` : score;
  }
}
