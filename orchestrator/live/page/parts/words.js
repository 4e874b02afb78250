// Figures as people who run networks read them, and the names of things.

const SIZES = ["B", "kB", "MB", "GB", "TB"];
const bytes = (count) => {
  if (count === null) return "–";
  let size = 0;
  while (count >= 999.5 && size < SIZES.length - 1) { count /= 1000; size += 1; }
  return `${digits(count)} ${SIZES[size]}`;
};
const RATES = ["bps", "kbps", "Mbps", "Gbps", "Tbps"];
/** "5.3 of 10 Mbps"; without the first, the second alone. */
const rate = (part, whole) => {
  let bits = 8 * whole, unit = 1, size = 0;
  while (bits / unit >= 999.5 && size < RATES.length - 1) { unit *= 1000; size += 1; }
  return `${part === null ? "" : `${digits((8 * part) / unit, 2)} of `}${digits(bits / unit)} ${RATES[size]}`;
};
const ago = (seconds) => (seconds < 1.5 ? "just now" : seconds < 90
  ? `${Math.round(seconds)} s ago` : seconds < 5400
    ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`);
const count = (number, one, more = `${one}s`) => `${figure(number)} ${number === 1 ? one : more}`;
const words = (name) => name.replaceAll("_", " ");
const nick = (request) => `#${Number(request.split("-").at(-1)) || request}`;
const GOOD_ENDS = new Set(["stop", "length"]);
const BAD_LINES = { silent: "no word", stalled: "KV waits and nothing moves" };

const SVG = "http://www.w3.org/2000/svg";
function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
/** Children of `parent`, one for each item, that stay the same elements: focus is not lost. */
function keep(parent, items, key, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const child = known.get(key(item)) ?? create(item);
    child.dataset.key = key(item);
    update(child, item);
    return child;
  });
  for (const child of [...parent.children]) if (!wanted.includes(child)) child.remove();
  wanted.forEach((child, i) => {
    if (parent.children[i] !== child) parent.insertBefore(child, parent.children[i] ?? null);
  });
}
