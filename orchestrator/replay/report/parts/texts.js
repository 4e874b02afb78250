// What is shown and how: the data (see `page.py`), what the user chose, looks, and figures as people
// read them (the same as in `table.py`). Texts of the user's go in as text, never as markup; what
// Plotly is given passes `plain`, since Plotly reads some markup.

const data = JSON.parse(document.getElementById("data").textContent);
const { policies, slo, timelines } = data;
const state = { hidden: new Set(), axis: "log", zoom: "start", request: null };
const at = (id) => document.getElementById(id);
const METRICS = [
  ["ttft_s", "Time to first token", slo.ttft_s],
  ["second_token_s", "Second token", null],
  ["exposed_stall_s", "Exposed stall", null],
  ["tpot_s", "Time per output token", slo.tpot_s],
  ["end_to_end_s", "End to end", null],
];
const STAGES = ["queued", "prefill", "transfer", "stall", "relay", "handoff", "main"];
const STAGE_TEXT = {
  transfer: "KV transfer", stall: "waiting for KV", main: "main decode", relay: "relay decode",
};
const LETTERS = { queued: "--on-light", transfer: "--on-light", stall: "--ink" };
const DASHES = { local: "dot", direct: "dash", relay: "solid", auto: "dashdot" };
const SVG_DASHES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "8 3 2 3", longdash: "10 4" };

let others = 0;
const looks = policies.map(({ policy }) =>
  Object.hasOwn(DASHES, policy)
    ? { tint: `--${policy}`, dash: DASHES[policy] }
    : { tint: `--other${others % 4}`, dash: ["longdash", "solid", "dash", "dot"][others++ % 4] });
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const stageTint = (stage) => css(stage === "relay" ? "--relaying" : `--${stage}`);
const shown = (i) => !state.hidden.has(i);

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
