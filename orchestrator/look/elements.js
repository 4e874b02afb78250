// What every page has: figures as people read them, and elements. Texts of the user's go in as text,
// never as markup.

const at = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const digits = (value, n = 3) => String(Number(value.toPrecision(n)));
const secs = (value) => {
  if (value === null || value === undefined) return "–";
  if (value >= 999.5) return `${Math.round(value)} s`;
  if (value >= 0.9995) return `${digits(value)} s`;
  return value >= 1e-4 ? `${digits(value * 1e3)} ms` : "0";
};
const figure = (value) =>
  value === null ? "–" : value >= 1000 ? Math.round(value).toLocaleString("en") : digits(value);
const percent = (value) => `${(value * 100).toFixed(1)}%`;
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (text) => (text.length > 22 ? `${text.slice(0, 21)}…` : text);

function make(tag, { text, style, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(style ?? {})) element.style.setProperty(name, value);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
