// What the parts of the page share.

export const element = (id) => document.getElementById(id);
export const percent = (share) => `${(100 * share).toFixed(1)} %`;
export const number = (value, digits = 2) => value.toFixed(digits).replace(/^-(0\.0*)$/, "$1").replace("-", "−");

/** How much larger than usual the letters of the page are: more on a projector. */
export const unit = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Shows on a button whether it plays or pauses. */
export function showPlaying(button, playing, play) {
  const word = playing ? "Pause" : play;
  button.textContent = `${playing ? "❚❚" : "▶\uFE0E"} ${word}`; // no emoji
  button.ariaLabel = word;
}

/** The value of a colour of the style sheet, such as "--accent". */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A part of `values`, which are (layers, heads, size, size): the first rows and columns of one head, or of their mean. */
export function matrix(values, size, heads, layer, chosen, rows, columns) {
  const list = chosen === "mean" ? Array.from({ length: heads }, (_, head) => head) : [chosen];
  const at = (head, row, column) => values[((layer * heads + head) * size + row) * size + column];
  const mean = (row, column) => list.reduce((sum, head) => sum + at(head, row, column), 0) / list.length;
  return Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (_, column) => mean(row, column)));
}

/**
 * Fills a list with tokens, [{ label, weight, note, words, state }, …]; the weight is the strength of the colour, and
 * noted below the label. With `choose`, they are buttons.
 */
export function showTokens(list, tokens, choose) {
  const items = d3.select(list).selectAll("li").data(tokens).join("li");
  const boxes = items.selectAll(choose ? "button" : "span").data((token) => [token]).join(choose ? "button" : "span");
  const depth = (weight) => (weight > 0.7 ? "half strong" : weight > 0.4 ? "half" : ""); // for the colour of the text
  const weight = ({ label, weight }) => (weight === undefined ? null : `${label}: ${percent(weight)}`);
  boxes
    .attr("type", choose ? "button" : null)
    .attr("class", (token) => `token ${token.state ?? ""} ${depth(token.weight)}`)
    .style("--strength", (token) => (token.weight === undefined ? null : `${100 * Math.min(token.weight, 1)}%`))
    .attr("title", (token) => token.words ?? weight(token))
    .attr("aria-label", (token) => (choose ? token.words : null)); // what is no button is read as it is
  boxes.html("").append("span").text((token) => token.label);
  boxes.filter(({ note }) => note !== undefined).append("small").text(({ note }) => note);
  if (choose) boxes.on("click mouseenter focus", (event, token) => choose(token, event));
}

/** A small picture of a matrix of weights on a canvas. */
export function drawSmall(canvas, rows) {
  const [height, width] = [rows.length, rows[0]?.length ?? 0];
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.fillStyle = colour("--accent");
  rows.forEach((row, y) =>
    row.forEach((weight, x) => {
      context.globalAlpha = Math.min(Math.max(weight, 0), 1);
      context.fillRect(x, y, 1, 1);
    }),
  );
}

/** Rows of numbers as coloured cells, with a label before each row: negative ones in one colour, positive in another. */
export function drawStrips(canvas, rows, labels, bound) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.parentElement.clientWidth;
  const context = canvas.getContext("2d");
  const line = (labels.length > 30 ? 13 : 16) * unit();
  const font = `${12 * unit()}px system-ui, sans-serif`;
  context.font = font;
  const widest = Math.max(...labels.map((label) => context.measureText(label).width));
  const left = widest ? Math.min(widest, 90 * unit()) + 8 * unit() : 0;
  canvas.width = Math.ceil(width * scale);
  canvas.height = Math.ceil(line * rows.length * scale);
  Object.assign(canvas.style, { width: `${width}px`, height: `${line * rows.length}px` });
  context.scale(scale, scale);
  const [negative, positive, zero, ink] = ["--negative", "--accent", "--cell", "--faint"].map(colour);
  context.font = font;
  context.textBaseline = "middle";
  rows.forEach((row, y) => {
    context.fillStyle = ink;
    context.fillText(labels[y], 0, line * (y + 0.5), left - 6 * unit());
    const cell = (width - left) / row.length;
    context.fillStyle = zero;
    context.fillRect(left, line * y, width - left, line - 1);
    row.forEach((value, x) => {
      context.fillStyle = value < 0 ? negative : positive;
      context.globalAlpha = Math.min(Math.abs(value) / bound, 1);
      context.fillRect(left + x * cell, line * y, Math.max(cell, 0.5), line - 1);
    });
    context.globalAlpha = 1;
  });
  return { line, left };
}
