// What every page has: its data, looks, and figures as people read them. Texts of the user's go in as
// text, never as markup; what Plotly is given passes `plain`, since Plotly reads some markup.

const data = JSON.parse(document.getElementById("data").textContent);
const { policies } = data;
const at = (id) => document.getElementById(id);
const DASHES = { local: "dot", direct: "dash", relay: "solid", auto: "dashdot" };

let others = 0;
const looks = policies.map(({ policy }) =>
  Object.hasOwn(DASHES, policy)
    ? { tint: `--${policy}`, dash: DASHES[policy] }
    : { tint: `--other${others % 4}`, dash: ["longdash", "solid", "dash", "dot"][others++ % 4] });
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const tint = (i) => ({ "--tint": `var(${looks[i].tint})` });

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
