// Part 5: the beam as a tree that grows.
import { element, number, percent, showPlaying, still, unit } from "./shared.js";

const PAUSE = 600; // milliseconds for each step of the growth
const ROW = 40;
const LETTERS = 12; // of a label

export class Beam {
  /** `choose(ids)` is called with the hypothesis that was clicked on, `search()` when a slider was moved. */
  constructor(settings, choose, search) {
    Object.assign(this, { choose, found: null, all: [], until: Infinity, timer: 0, chosen: null, focused: 0 });
    this.penalty = settings.penalty ?? "length";
    const beams = Math.min(settings.num_beams, settings.explain.beams);
    const sliders = { "num-beams": beams, "length-penalty": settings.length_penalty ?? 0.6 };
    for (const [id, value] of Object.entries(sliders)) {
      element(id).value = value;
      const say = () => (element(`${id}-value`).textContent = element(id).value);
      element(id).addEventListener("input", say);
      element(id).addEventListener("change", search);
      say();
    }
    element("grow").addEventListener("click", () => (this.timer ? this.#stop() : this.#grow()));
  }

  /** What the sliders ask for, as options of `beamSearch`. */
  get options() {
    return { numBeams: Number(element("num-beams").value), lengthPenalty: Number(element("length-penalty").value) };
  }

  show(found) {
    this.#stop();
    Object.assign(this, { found, until: Infinity, chosen: found.ended[0] ?? null, focused: 0 });
    this.all = this.#layout();
    this.#showTree();
    element("tree").parentElement.scrollLeft = 0;
    element("follow").hidden = true;
    this.#showEnded();
    element("node-words").textContent = "";
  }

  /** Draws the tree again, for instance with letters of another size. */
  draw() {
    this.#showTree();
  }

  #grow() {
    const last = Math.max(...this.found.nodes.map(({ position }) => position));
    showPlaying(element("grow"), true, "Grow");
    const tick = (until) => {
      this.until = until < last ? until : Infinity;
      this.#showTree();
      this.#scroll();
      if (until >= last) return this.#stop();
      this.timer = setTimeout(() => tick(until + 1), still() ? 0 : PAUSE);
    };
    tick(this.until < last ? this.until + 1 : -1); // goes on after a pause
  }

  /** Keeps the newest tokens in sight. */
  #scroll() {
    const right = d3.max(this.all, ({ data, place }) => (data.position <= this.until ? place.x + place.width : 0)) * unit();
    const box = element("tree").parentElement;
    box.scrollLeft = right - box.clientWidth;
  }

  #stop() {
    clearTimeout(this.timer);
    this.timer = 0;
    showPlaying(element("grow"), false, "Grow");
  }

  /** Whether a node had died, ended or gone on when the tree was as large as it is drawn. */
  #state(node) {
    const children = this.found.nodes.some(({ parent, position }) => parent === node.number && position <= this.until);
    if (node.state === "ended") return "ended";
    if (children || node.position === this.until) return "alive"; // the newest tokens of a tree that grows
    return node.state === "dead" ? "dead" : "open";
  }

  /** All nodes as { data, id, parent, place }; a place in the picture is { x, y, width }, x and y are those of its middle. */
  #layout() {
    const [columns, rows] = [this.#columns(), this.#rows()];
    const all = this.found.nodes.map((node) => ({ data: node, id: node.number, parent: null, place: null }));
    for (const node of all) {
      node.parent = all[node.data.parent] ?? null;
      node.place = { ...columns[node.data.position + 1], y: 22 + ROW * rows[node.id] };
    }
    return all;
  }

  /** The row of each node. The best translation is the first; others start below their parent, where nothing is. */
  #rows() {
    const { nodes, ended } = this.found;
    const best = new Set(this.#path(ended[0]));
    const children = d3.group(nodes.slice(1), ({ parent }) => parent);
    const next = ({ number }) => children.get(number)?.find((child) => best.has(child)) ?? children.get(number)?.[0];
    const [rows, taken] = [[], []]; // the row of each node, the last position in each row
    for (const first of nodes) {
      if (rows[first.number] !== undefined) continue;
      let row = (rows[first.parent] ?? -1) + 1;
      while (taken[row] >= first.position - 1) row++;
      for (let node = first; node; node = next(node)) {
        rows[node.number] = row;
        taken[row] = node.position;
      }
    }
    return rows;
  }

  #showTree() {
    const { all } = this;
    const shown = all.filter(({ data }) => data.position <= this.until);
    const path = new Set(this.#path(this.chosen).map(({ number }) => number));
    const height = 34 + d3.max(all, ({ place }) => place.y);
    const width = 4 + d3.max(all, ({ place }) => place.x + place.width / 2);
    const svg = d3.select("#tree").attr("viewBox", `0 0 ${width} ${height}`);
    svg.attr("width", width * unit()).attr("height", height * unit());
    const curve = d3.linkHorizontal().source(({ parent: { place } }) => [place.x + place.width / 2, place.y]);
    curve.target(({ place }) => [place.x - place.width / 2, place.y]);
    svg
      .selectAll("path")
      .data(shown.slice(1), ({ id }) => id) // all but the root
      .join("path")
      .attr("d", curve)
      .attr("class", ({ data }) => `link ${path.has(data.number) ? "path" : ""} ${this.#state(data)}`)
      .lower();
    this.#showNodes(svg, shown, path);
  }

  #showNodes(svg, shown, path) {
    const groups = svg.selectAll("g").data(shown, ({ id }) => id).join((enter) => {
      const group = enter.append("g").attr("role", "button");
      group.append("rect").attr("y", -12).attr("height", 24).attr("rx", 6);
      group.append("text").attr("class", "label").attr("y", 4);
      group.append("text").attr("class", "score").attr("y", 23);
      return group;
    });
    groups
      .attr("transform", (node) => `translate(${node.place.x},${node.place.y})`)
      .attr("class", ({ data }) => `node ${this.#state(data)} ${path.has(data.number) ? "path" : ""}`)
      .attr("tabindex", ({ id }) => (id === this.focused ? 0 : -1)) // one stop of the Tab key; arrows lead on
      .attr("aria-label", ({ data }) => this.#words(data))
      .on("click", (_, { data }) => this.#select(data))
      .on("mouseenter", (_, { data }) => (element("node-words").textContent = this.#words(data)))
      .on("focus", (_, { data }) => {
        this.focused = data.number;
        groups.attr("tabindex", ({ id }) => (id === this.focused ? 0 : -1));
        element("node-words").textContent = this.#words(data);
      })
      .on("keydown", (event, node) => this.#press(event, node, groups));
    groups.select("rect").attr("x", ({ place }) => -place.width / 2).attr("width", ({ place }) => place.width);
    groups.select(".label").text(({ data }) => this.#short(this.found.labels[data.number]));
    groups.select(".score").text(({ data }) => (data.position < 0 ? "" : number(data.score)));
  }

  /** Enter and Space choose a hypothesis; arrows lead to its parent, its first child, and those above and below. */
  #press(event, node, groups) {
    const others = groups.data();
    const beside = others.filter(({ data }) => data.position === node.data.position);
    beside.sort((a, b) => a.place.y - b.place.y);
    const at = beside.indexOf(node);
    const keys = {
      ArrowLeft: () => node.parent,
      ArrowRight: () => others.find(({ parent }) => parent === node),
      ArrowUp: () => beside[at - 1],
      ArrowDown: () => beside[at + 1],
    };
    const select = event.key === "Enter" || event.key === " ";
    if (!select && !keys[event.key]) return;
    event.preventDefault();
    if (select) return this.#select(node.data);
    const to = keys[event.key]();
    if (to) groups.filter((other) => other === to).node().focus();
  }

  #short(label) {
    return [...label].length > LETTERS ? `${[...label].slice(0, LETTERS - 1).join("")}…` : label;
  }

  /** Width and middle of the boxes at each position, the start first. */
  #columns() {
    const { nodes, labels } = this.found;
    let right = -20;
    return d3.groups(nodes, ({ position }) => position).map(([, group]) => {
      const letters = Math.max(3, ...group.map(({ number }) => [...this.#short(labels[number])].length));
      const [left, width] = [right + 24, 12 + 7.5 * letters];
      right = left + width;
      return { x: left + width / 2, width };
    });
  }

  /** The nodes from the first token to this one. */
  #path(number) {
    const { nodes } = this.found;
    const path = [];
    for (let node = nodes[number]; node?.parent >= 0; node = nodes[node.parent]) path.unshift(node);
    return path;
  }

  #words(node) {
    if (node.position < 0) return "The start token, from which all hypotheses grow";
    const text = this.#path(node.number).map(({ number }) => this.found.labels[number]).join(" ");
    const share = `the last token had ${percent(Math.exp(node.share))}`;
    const facts = `“${text}”: log-probability ${number(node.score)}; ${share}.`;
    const state = this.#state(node);
    if (state === "ended") {
      const end = !node.cut ? "Ended" : `Cut off after ${node.ids.length} tokens, the most that this page shows`;
      return `${facts} ${end}, with the score ${number(node.final)}: the log-probability divided by ${this.#divisor(node)}.`;
    }
    if (state === "dead") {
      const others = `the worst that stayed in the beam had ${number(node.bar)}`;
      return `${facts} Died: its best continuation had ${number(node.best)}, but ${others}.`;
    }
    return state === "open" ? `${facts} It was still open when the search stopped.` : facts;
  }

  /** What the log-probability of a hypothesis is divided by, in words or as HTML. */
  #divisor({ ids }, html = false) {
    const { lengthPenalty } = this.options;
    const base = this.penalty === "length" ? ids.length : `((5 + ${ids.length}) / 6)`;
    if (html) return `${base}<sup>${lengthPenalty}</sup>`;
    return this.penalty === "length" ? `${base} tokens to the power ${lengthPenalty}` : `${base} to the power ${lengthPenalty}`;
  }

  #select(node) {
    if (node.position < 0) return;
    this.chosen = node.number;
    element("node-words").textContent = this.#words(node);
    this.#showTree();
    this.#showEnded();
    element("follow").hidden = false;
    this.choose(node.ids);
  }

  #showEnded() {
    const { nodes, ended, texts } = this.found;
    const labels = d3.select("#hypotheses").selectAll("label").data(ended).join((enter) => {
      const label = enter.append("label");
      label.append("input").attr("type", "radio").attr("name", "hypothesis");
      label.append("span").attr("dir", "auto");
      label.append("small");
      label.append("data");
      return label;
    });
    const inputs = labels.select("input").property("checked", (place) => place === this.chosen);
    inputs.on("change", (_, place) => this.#select(nodes[place]));
    labels.select("span").text((_, n) => texts[n]);
    labels.select("small").html((place) => `${number(nodes[place].score)} / ${this.#divisor(nodes[place], true)} =`);
    labels.select("data").attr("value", (place) => nodes[place].final).text((place) => number(nodes[place].final));
  }
}
