// A plan: who does what, the way of the requests, what limits it, and why others lost.

const why = data.explanation;
const TINTS = {
  prefill: "--prefill", local: "--local", direct: "--direct", relay: "--relay", handoff: "--handoff",
};
const head = (...names) =>
  make("thead", {}, make("tr", {}, ...names.map((text) => make("th", { scope: "col", text }))));
const row = (first, ...rest) =>
  make("tr", {}, make("th", { scope: "row", text: first }), ...rest.map((text) => make("td", { text })));
const count = (n) => (n ? String(n) : "");

/** What the colours mean, of those that are there. */
function stages() {
  const there = new Set(data.flows.map((flow) => flow.stage));
  at("stages").replaceChildren(...Object.keys(TINTS).filter((stage) => there.has(stage)).map((stage) =>
    make("span", { style: { "--tint": `var(${TINTS[stage]})` } }, make("span", { class: "dot" }), ` ${stage}  `)));
}

function words() {
  for (const [name, text] of data.facts) at("facts").append(make("dt", { text: name }), make("dd", { text }));
  at("verdict").textContent = why.headline;
  at("binding").textContent = data.why_nothing ?? `${why.binding}.`;
  at("bound").textContent = `${why.bound}.`;
  at("settled").textContent = `${why.fixed_point}.`;
  for (const [site, text] of Object.entries(why.sites)) {
    at("sites").append(make("dt", { text: site }), make("dd", { text }));
  }
}

function tables() {
  at("pools").replaceChildren(
    head("pool", "chips", "each worker", "prefill", "relay", "main", "idle chips"),
    make("tbody", {}, ...data.pools.map(({ name, chip, chips }, i) => {
      const post = data.assignment[i];
      const workers = post.prefill + post.relay + post.main;
      return row(name, String(chips), workers ? `${post.parallel} x ${chip}` : chip,
        ...["prefill", "relay", "main"].map((role) => count(post[role])),
        count(chips - workers * post.parallel));
    })));
  at("lines").replaceChildren(
    ...(data.lines.length ? [head("line", "used", "KV waits for its turn")] : []),
    make("tbody", {}, ...data.lines.map((line) =>
      row(`${line.from} to ${line.to}`, percent(line.used), secs(line.wait_s)))));
  at("rejected").replaceChildren(
    head("assignment", "requests/s", "cost an hour", "requests per cost", "why"),
    make("tbody", {}, ...why.rejected.map((lost) => row(
      lost.assignment, figure(lost.rate), figure(lost.cost_per_h), figure(lost.per_cost), lost.why))));
}

/** Nodes in columns: requests, prefill, relay, main; a pool's roles are nodes of their own. */
function picture() {
  if (!data.flows.length) return;
  const names = [...new Set(data.flows.flatMap((flow) => [flow.from, flow.to]))];
  const relays = names.some((name) => name.endsWith(" relay"));
  const column = (name) =>
    name === "requests" ? 0 : name.endsWith(" prefill") ? 1 : name.endsWith(" relay") ? 2 : relays ? 3 : 2;
  const last = relays ? 3 : 2;
  const plot = framed("picture", "Flows", "requests/s; hover for what each is");
  draw(plot, [{
    type: "sankey", arrangement: "snap", valueformat: ".3~g", valuesuffix: " requests/s",
    textfont: { family: css("--sans"), size: 13, color: css("--ink") },
    node: {
      label: names.map(plain), pad: 26, thickness: 16, line: { width: 0 },
      x: names.map((name) => Math.min(0.999, Math.max(0.001, column(name) / last))),
      color: names.map((name) => css(name === "requests" ? "--soft" : "--accent")),
    },
    link: {
      source: data.flows.map((flow) => names.indexOf(flow.from)),
      target: data.flows.map((flow) => names.indexOf(flow.to)),
      value: data.flows.map((flow) => flow.per_s),
      label: data.flows.map((flow) => flow.stage),
      color: data.flows.map((flow) => `${css(TINTS[flow.stage])}99`), // of seven digits: a bit clear
    },
  }], layout({ height: 130 + 64 * names.length, margin: { l: 14, r: 14, t: 14, b: 18 } }));
  plot.setAttribute("aria-label", data.flows.map((flow) =>
    `${flow.stage}: ${figure(flow.per_s)} requests/s from ${flow.from} to ${flow.to}`).join("; "));
}

function shadows() {
  const all = [...why.shadows].reverse();
  if (!all.length) return;
  const plot = framed("shadows", "One more", "requests/s that it adds");
  draw(plot, [{
    type: "bar", orientation: "h", x: all.map((shadow) => shadow.adds),
    y: all.map((shadow) => plain(shadow.what)), text: all.map((shadow) => `+${figure(shadow.adds)}`),
    customdata: all.map((shadow) => plain(shadow.text)), textposition: "auto", cliponaxis: false,
    marker: { color: css("--accent") }, hovertemplate: "%{customdata}<extra></extra>",
  }], layout({
    height: 90 + 34 * all.length, margin: { l: 20, r: 40, t: 10, b: 30 },
    xaxis: axis({ rangemode: "tozero" }), yaxis: axis({ showgrid: false }),
  }));
  plot.setAttribute("aria-label", why.shadows.map((shadow) => shadow.text).join("; "));
}

function drawAll() {
  at("picture").replaceChildren();
  at("shadows").replaceChildren();
  picture();
  shadows();
}

words();
stages();
tables();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
document.documentElement.dataset.drawn = "yes";
