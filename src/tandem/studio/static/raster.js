// Draw thousands of small symbols and lines into images. Without a graphics card, canvas calls cost microseconds each;
// pixels written here are several times faster, and four panels follow a slider within a frame.

import { h } from "./dom.js";
import { symbolPath } from "./palette.js";

/** Return a symbol as lists of pixels: offsets from its centre and colours as red, green, blue, alpha. */
export function makeStamp(symbol, radius, ratio, colour, alpha, outline) {
  const half = Math.ceil((radius * 1.4 + 1) * ratio);
  const size = 2 * half + 1;
  const canvas = h("canvas", { width: size, height: size });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.setTransform(ratio, 0, 0, ratio, half + 0.5, half + 0.5);
  const path = new Path2D(symbolPath(symbol, radius));
  context.globalAlpha = alpha;
  context.fillStyle = colour;
  context.fill(path);
  if (outline) {
    context.lineWidth = 0.6;
    context.strokeStyle = outline;
    context.stroke(path);
  }
  const { data } = context.getImageData(0, 0, size, size);
  const pixels = [];
  for (let y = 0; y < size; y++) {
    for (let x = 0; x < size; x++) {
      const p = 4 * (y * size + x);
      if (data[p + 3] > 8) pixels.push([x - half, y - half, data[p], data[p + 1], data[p + 2], data[p + 3]]);
    }
  }
  const column = (c) => Int32Array.from(pixels, (pixel) => pixel[c]);
  const bytes = Uint8Array.from(pixels.flatMap((pixel) => pixel.slice(2)));
  return {
    half, dx: column(0), dy: column(1), red: column(2), green: column(3), blue: column(4), alpha: column(5),
    packed: new Uint32Array(bytes.buffer),
  };
}

const NEARLY_OPAQUE = 220;

/** An image whose pixels can be written as bytes and as whole colours. */
export function makeImage(width, height) {
  const image = new ImageData(width, height);
  return { image, width, height, bytes: image.data, packed: new Uint32Array(image.data.buffer) };
}

/** Draw a stamp at device pixels (x, y) of an image, over what is there. Points at the border are left out. */
export function press({ width, height, bytes, packed }, stamp, x, y) {
  const { half, dx, dy, alpha } = stamp;
  if (!(x >= half && y >= half && x < width - half && y < height - half)) return;
  const centre = y * width + x;
  for (let i = 0; i < dx.length; i++) {
    const k = centre + dy[i] * width + dx[i];
    // Whole colours are written at once where nothing is below or would show; only edges are mixed.
    if (packed[k] === 0 || alpha[i] > NEARLY_OPAQUE) packed[k] = stamp.packed[i];
    else mix(bytes, 4 * k, stamp.red[i], stamp.green[i], stamp.blue[i], alpha[i]);
  }
}

/** Put a colour over another; colours are not multiplied by alpha, which is from 0 to 255. */
function mix(bytes, p, red, green, blue, a) {
  const below = bytes[p + 3];
  const total = a + ((below * (255 - a) * 257) >> 16);
  const share = ((a << 8) / total) | 0;
  bytes[p] += ((red - bytes[p]) * share) >> 8;
  bytes[p + 1] += ((green - bytes[p + 1]) * share) >> 8;
  bytes[p + 2] += ((blue - bytes[p + 2]) * share) >> 8;
  bytes[p + 3] = total;
}

const FULL = 64; // coverage of one line through the middle of a pixel
const TABLE = 2048;

/** How often lines cross each pixel of an image. Crossings add up, so the density of lines is visible. */
export class Coverage {
  constructor(width, height) {
    Object.assign(this, { width, height, counts: new Uint16Array(width * height) });
  }

  clear() {
    this.counts.fill(0);
  }

  /** Add a line between device pixels, smoothed across its direction. */
  line(x0, y0, x1, y1) {
    const steep = Math.abs(y1 - y0) > Math.abs(x1 - x0);
    // u runs along the longer side, v across it.
    let [u0, v0, u1, v1] = steep ? [y0, x0, y1, x1] : [x0, y0, x1, y1];
    if (u0 > u1) [u0, v0, u1, v1] = [u1, v1, u0, v0];
    const slope = (v1 - v0) / (u1 - u0 || 1);
    const [along, across] = steep ? [this.width, 1] : [1, this.width];
    const first = Math.max(0, Math.round(u0));
    const last = Math.min((steep ? this.height : this.width) - 1, Math.round(u1));
    const bound = (steep ? this.width : this.height) - 2;
    const { counts } = this;
    let v = v0 + slope * (first - u0);
    for (let u = first; u <= last; u++, v += slope) {
      const whole = v | 0;
      if (v < 0 || whole > bound) continue;
      const second = ((v - whole) * FULL) | 0;
      const p = u * along + whole * across;
      counts[p] += FULL - second;
      counts[p + across] += second;
    }
  }

  /** Put a colour where lines are, with opacity `alpha` for each. */
  paint({ bytes, packed }, [red, green, blue], alpha) {
    const opacity = Uint8Array.from({ length: TABLE }, (_, c) => Math.round(255 * (1 - (1 - alpha) ** (c / FULL))));
    const { counts } = this;
    const colour = (blue << 16) | (green << 8) | red;
    for (let k = 0; k < counts.length; k++) {
      const c = counts[k];
      if (c === 0) continue;
      const a = opacity[c < TABLE ? c : TABLE - 1];
      if (packed[k] === 0 || a > NEARLY_OPAQUE) packed[k] = (a << 24) | colour;
      else mix(bytes, 4 * k, red, green, blue, a);
    }
  }
}

const components = new Map();

/** Red, green and blue of a CSS colour. */
export function rgb(colour) {
  if (!components.has(colour)) {
    const context = h("canvas", { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    components.set(colour, [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)]);
  }
  return components.get(colour);
}

/** Tell whether an element is in the window. `onLate` is called when it comes there, and soon after `later()`. */
export function watchVisible(element, onLate) {
  let visible = true;
  let timer = 0;
  new IntersectionObserver(([entry]) => {
    visible = entry.isIntersecting;
    if (visible) onLate();
  }).observe(element);
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(onLate, 400);
  };
  return { isVisible: () => visible, later };
}

/** Return the context of a canvas of this size, cleared, in CSS pixels. */
export function clearedContext(canvas, { width, height, ratio }) {
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  return context;
}
