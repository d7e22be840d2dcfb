// Parts 1 and 2: tokens, embeddings and positions.
import { drawStrips, element, number, showTokens } from "./shared.js";

const STACKED = 16; // most tokens whose strips are shown one below the other, where their numbers add up

/** The text as tokens; what is known about the one under the pointer or with the focus is said below. */
export function showText({ tokens }) {
  const say = (token) => (element("token-words").textContent = token.words);
  showTokens(element("token-list"), tokens.map((token) => ({ ...token, note: token.id })), say);
  element("token-words").textContent = `${tokens.length} tokens. Point at one to read about it.`;
}

/** Embeddings, what positions add to them, and their sum, a row of colours for each token. */
export function showEmbeddings({ tokens, encoder }, settings) {
  const { embeddings, states, count } = encoder;
  const width = embeddings.length / settings.explain.length;
  const rows = (values) => Array.from({ length: count }, (_, n) => values.subarray(n * width, (n + 1) * width));
  const [table, sums] = [rows(embeddings), rows(states)];
  const added = sums.map((row, n) => row.map((value, column) => value - table[n][column]));
  const joined = ["sinusoidal", "learned", "index"].includes(settings.explain.positions);
  const panels = [
    ["embedding", "from the table", table],
    ["+ position", "from the place in the text", added],
    ["= input of the first layer", "", sums],
  ];
  const bound = d3.quantile(table.concat(sums).flatMap((row) => [...row].map(Math.abs)), 0.98);
  element("strips").classList.toggle("stacked", count <= STACKED);
  const places = d3.select("#strips").selectAll("figure").data(joined ? panels : panels.slice(0, 1)).join("figure");
  places.selectAll("figcaption").data((panel) => [panel]).join("figcaption").text(([name]) => name);
  const canvases = places.selectAll("canvas").data((panel) => [panel]).join("canvas");
  canvases
    .attr("tabindex", 0)
    .attr("role", "application")
    .attr("aria-roledescription", "matrix")
    .attr("aria-label", ([name]) => `${name}: ${count} tokens of ${width} numbers; use the arrow keys to read them`)
    .each(function ([name, , values]) {
      const { line, left } = drawStrips(this, values, tokens.map(({ label }) => label), bound);
      readCells(this, values, { name, line, left, tokens });
    });
}

/** Lets the pointer and the arrow keys read the numbers of a canvas that `drawStrips` drew. */
function readCells(canvas, rows, { name, line, left, tokens }) {
  let cell = null;
  const say = (row, column) => {
    if (!(row >= 0 && row < rows.length && column >= 0 && column < rows[0].length)) return;
    cell = [row, column];
    const size = Math.hypot(...rows[row]);
    const value = `number ${column + 1} of ${rows[0].length} is ${number(rows[row][column], 3)}`;
    const words = `“${tokens[row].label}”, ${name}: ${value}`;
    element("strip-words").textContent = `${words}; length of the whole row ${number(size)}`;
  };
  canvas.onpointermove = canvas.onpointerdown = ({ offsetX, offsetY }) =>
    say(Math.floor(offsetY / line), Math.floor(((offsetX - left) / (canvas.clientWidth - left)) * rows[0].length));
  canvas.onkeydown = (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!steps) return;
    event.preventDefault();
    if (cell) say(cell[0] + steps[0], cell[1] + steps[1]);
    else say(0, 0);
  };
}
