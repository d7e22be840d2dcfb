const FONT = "system-ui, sans-serif";

/** An attention map on a canvas, whose cells can be read with the mouse, by touch and with the arrow keys. */
export class AttentionMap {
  /** `say(text, cell)` is called with the weight of the cell that was chosen. */
  constructor(canvas, say) {
    Object.assign(this, { canvas, say, rows: [], columns: [], weights: [], cell: null, options: {} });
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    canvas.addEventListener("pointerdown", (event) => this.#point(event));
    // A finger that is lifted leaves too, and what it chose stays.
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.#choose(null));
    canvas.addEventListener("keydown", (event) => this.#step(event));
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /**
   * Shows weights[row][column] with labels for both. Options: `strength(weight)`, from 0 to 1, of the colour;
   * `words(weight)`; `hidden(row, column)`, whether a mask hides a cell; `row`, one to point out; `mark`, a cell to
   * point out while no other is chosen.
   */
  show(rows, columns, weights, options = {}) {
    Object.assign(this, { rows, columns, weights, cell: null, options });
    this.say("", null);
    this.draw();
  }

  draw() {
    const { canvas, rows, columns, weights } = this;
    const available = canvas.parentElement.clientWidth;
    if (!rows.length || !available) return;
    const context = canvas.getContext("2d");
    const unit = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16; // more on a projector
    const font = (size) => (context.font = `${size}px ${FONT}`);
    font(13 * unit);
    const most = 130 * unit; // of a label
    const widest = (labels) => Math.min(Math.max(...labels.map((label) => context.measureText(label).width)), most);
    this.left = Math.ceil(widest(rows) + 10 * unit);
    const letters = columns.slice(0, -1).every((label) => [...label].length === 1); // the last one is the end token
    const least = (letters ? 12 : 14) * unit;
    const largest = (columns.length > 24 ? 24 : 38) * unit;
    this.size = Math.min(Math.max((available - this.left - 1) / columns.length, least), largest);
    const crowded = columns.some((label) => context.measureText(label).width > this.size);
    const turned = (label) => crowded && [...label].length > 1;
    this.top = crowded ? Math.ceil(widest(columns) + 10 * unit) : 24 * unit;
    const [width, height] = [this.left + this.size * columns.length, this.top + this.size * rows.length];
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.ceil(width * scale);
    canvas.height = Math.ceil(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    context.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    const [ink, faint, accent, empty, line] = ["--ink", "--faint", "--accent", "--cell", "--line"].map(colour);
    font(Math.min(13 * unit, this.size));
    context.textBaseline = "middle";
    const chosen = (axis, n) => this.cell && this.cell[axis] === n;
    rows.forEach((label, row) => {
      context.fillStyle = chosen("row", row) ? ink : faint;
      context.textAlign = "right";
      context.fillText(label, this.left - 6 * unit, this.top + this.size * (row + 0.5), most);
    });
    columns.forEach((label, column) => {
      context.fillStyle = chosen("column", column) ? ink : faint;
      context.save();
      context.translate(this.left + this.size * (column + 0.5), this.top - (turned(label) ? 6 : 11) * unit);
      if (turned(label)) context.rotate(-Math.PI / 2);
      context.textAlign = turned(label) ? "left" : "center";
      context.fillText(label, 0, 0, most);
      context.restore();
    });
    const gap = this.size > 15 ? 1 : 0.5;
    const { strength = (weight) => weight, hidden = () => false } = this.options;
    weights.forEach((values, row) =>
      columns.forEach((_, column) => {
        const place = [this.left + this.size * column, this.top + this.size * row, this.size - gap, this.size - gap];
        if (hidden(row, column)) return strike(context, line, ...place);
        context.fillStyle = empty;
        context.fillRect(...place);
        context.fillStyle = accent;
        context.globalAlpha = Math.min(Math.max(strength(values[column]), 0), 1);
        context.fillRect(...place);
        context.globalAlpha = 1;
      }),
    );
    if (this.options.row !== undefined) {
      context.strokeStyle = faint;
      context.strokeRect(this.left, this.top + this.size * this.options.row, this.size * columns.length - gap, this.size - gap);
    }
    const marked = this.cell ?? this.options.mark;
    if (marked) {
      context.strokeStyle = ink;
      context.lineWidth = 2;
      const { row, column } = marked;
      context.strokeRect(this.left + this.size * column, this.top + this.size * row, this.size - gap, this.size - gap);
    }
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - this.left) / this.size);
    const row = Math.floor((event.clientY - box.top - this.top) / this.size);
    const inside = row >= 0 && row < this.rows.length && column >= 0 && column < this.columns.length;
    this.#choose(inside ? { row, column } : null);
  }

  #step(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!steps[event.key] || !this.rows.length) return;
    event.preventDefault();
    const { row, column } = this.cell ?? { row: 0, column: 0 };
    const [down, right] = this.cell ? steps[event.key] : [0, 0];
    const within = (n, count) => Math.min(Math.max(n, 0), count - 1);
    this.#choose({ row: within(row + down, this.rows.length), column: within(column + right, this.columns.length) });
  }

  #words({ row, column }) {
    const { words = (weight) => `${(100 * weight).toFixed(1)} %`, hidden } = this.options;
    return hidden?.(row, column) ? "hidden by the mask" : words(this.weights[row][column]);
  }

  #choose(cell) {
    if (cell?.row === this.cell?.row && cell?.column === this.cell?.column) return;
    this.cell = cell;
    this.say(cell ? `“${this.rows[cell.row]}” → “${this.columns[cell.column]}”: ${this.#words(cell)}` : "", cell);
    this.draw();
  }
}

/** A cell that a mask hides: a line across it. */
function strike(context, colour, x, y, width, height) {
  context.strokeStyle = colour;
  context.beginPath();
  context.moveTo(x, y + height);
  context.lineTo(x + width, y);
  context.stroke();
}
