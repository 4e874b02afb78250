// A sweep: maps over two axes (or curves over one), where a policy pays, and every point.

const { axes, texts, near, far, measure, cells } = data;
const GAIN = "gain";
const signed = (value) =>
  `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value * 100).toFixed(Math.abs(value) < 0.095 ? 1 : 0)}%`;
const LABELS = {
  [GAIN]: ["", signed],
  goodput_per_cost: ["Requests in SLO per cost", figure],
  goodput_per_s: ["Goodput, requests/s", figure],
  within_slo: ["Within SLO", percent],
  cost_per_million_tokens: ["Cost per million tokens", figure],
  cost: ["Cost", figure],
  "ttft_s.p90": ["TTFT, P90", secs],
  "second_token_s.p90": ["Second token, P90", secs],
  "exposed_stall_s.p90": ["Exposed stall, P90", secs],
  "tpot_s.p90": ["TPOT, P90", secs],
  "end_to_end_s.p90": ["End to end, P90", secs],
  output_tokens_per_s: ["Output tokens/s", figure],
  wire_gb: ["KV over lines, GB", figure],
};
const lower = (text) => text.charAt(0).toLowerCase() + text.slice(1);
const known = Object.keys(cells[0].policies[near]);
const names = policies.map(({ policy }) => policy);
const paying = far.length > 0;
const measured = LABELS[measure]?.[0] ?? measure;
LABELS[GAIN][0] = `${measured}, against ${near}`;
const figures = [
  ...(paying ? [GAIN] : []),
  ...Object.keys(LABELS).filter((name) => known.includes(name)),
  ...known.filter((name) => !(name in LABELS) && !/\.p50$|^requests$|^finished$/.test(name)),
];
const label = (name) => LABELS[name]?.[0] ?? name;
const told = (name, value) =>
  value === null || value === undefined ? "–" : (LABELS[name]?.[1] ?? figure)(value);
const chosen = { figure: figures[0], slice: 0 };

const wide = (axis) => plain(axis.unit ? `${axis.parameter} (${axis.unit})` : axis.parameter);
const index = (axis, value) => axis.values.indexOf(value);
const cellAt = new Map(cells.map((cell) => [cell.at.map((v, i) => index(axes[i], v)).join(), cell]));
const pointAt = (...places) =>
  cellAt.get(axes.length > 2 ? [...places, chosen.slice].join() : places.join());
function value(cell, policy, name) {
  if (name !== GAIN) return cell.policies[policy][name] ?? null;
  const [one, other] = [policy, near].map((each) => cell.policies[each][measure]);
  if (one === null || other === null) return null;
  return other > 0 ? one / other - 1 : one > 0 ? Infinity : 0;
}
const shownPolicies = () => (chosen.figure === GAIN ? far : names);
const sliced = (found) =>
  axes.length < 3 || found.at[axes[2].parameter] === undefined
  || found.at[axes[2].parameter] === axes[2].values[chosen.slice];

// ---- maps and curves

function plots(place, titles) {
  at(place).replaceChildren();
  return titles.map(([title, small]) => framed(place, title, small));
}

function colours(all) {
  if (chosen.figure === GAIN) {
    // The same for more and less: what is far off does not hide what is near.
    const most = Math.min(1, Math.max(0.05, ...all.filter(Number.isFinite).map(Math.abs)));
    return {
      zmin: -most, zmax: most,
      colorscale: [[0, css("--fault-ink")], [0.5, css("--card")], [1, css("--accent")]],
    };
  }
  const finite = all.filter(Number.isFinite);
  return {
    zmin: Math.min(...finite), zmax: Math.max(...finite),
    colorscale: [[0, css("--card")], [1, css("--accent")]],
  };
}

const ticks = (place) => {
  const every = Math.ceil(texts[place].length / 10);
  const kept = texts[place].map((_, i) => i).filter((i) => i % every === 0);
  return axis({
    tickvals: kept, ticktext: kept.map((i) => String(axes[place].values[i])), showgrid: false,
    title: { text: wide(axes[place]), standoff: 8 },
  });
};

function maps() {
  const shown = shownPolicies();
  const found = shown.map((policy) =>
    axes[1].values.map((_, y) => axes[0].values.map((_, x) => value(pointAt(x, y), policy, chosen.figure))));
  const scale = colours(found.flat(2));
  const placed = plots("maps", shown.map((policy) => [policy, `${label(chosen.figure)}`]));
  const few = axes[0].values.length <= 8;
  shown.forEach((policy, i) => {
    const words = found[i].map((row) => row.map((v) => told(chosen.figure, v === Infinity ? null : v)));
    const capped = found[i].map((row) => row.map((v) => (v === Infinity ? scale.zmax : v)));
    const traces = [{
      type: "heatmap", z: capped, text: words, ...scale, xgap: 1, ygap: 1, showscale: false,
      texttemplate: few ? "%{text}" : "", hovertemplate:
        `${plain(axes[0].parameter)} %{customdata[0]}<br>${plain(axes[1].parameter)} %{customdata[1]}<br><b>%{text}</b><extra>${plain(policy)}</extra>`,
      customdata: axes[1].values.map((_, y) => axes[0].values.map((_, x) => [plain(texts[0][x]), plain(texts[1][y])])),
    }];
    if (policy !== near) {
      traces.push({
        type: "contour", z: axes[1].values.map((_, y) => axes[0].values.map((_, x) => {
          const gain = value(pointAt(x, y), policy, GAIN);
          return gain === Infinity ? 1 : gain;
        })),
        contours: { start: 0, end: 0, size: 1, coloring: "none" }, showscale: false, hoverinfo: "skip",
        line: { color: css("--ink"), width: 2.5 }, connectgaps: false, name: "break-even",
      });
    }
    draw(placed[i], traces, layout({
      height: 120 + 38 * Math.min(12, Math.max(4, axes[1].values.length)), xaxis: ticks(0), yaxis: ticks(1),
      margin: { l: 60, r: 14, t: 10, b: 46 },
    }));
    placed[i].setAttribute("aria-label", `${label(chosen.figure)} of ${policy}: ${words.map((row) => row.join(", ")).join("; ")}`);
  });
}

const realAxis = (place, more) => axis({
  type: axes[place].log ? "log" : "linear", title: { text: wide(axes[place]), standoff: 8 },
  tickvals: axes[place].values, ticktext: axes[place].values.map((v) => String(v)), ...more,
});

function curves() {
  const shown = shownPolicies();
  const [plot] = plots("maps", [[label(chosen.figure), "each policy along the axis"]]);
  const traces = shown.map((policy) => {
    const ys = axes[0].values.map((_, x) => value(pointAt(x), policy, chosen.figure));
    return {
      ...lineOf(names.indexOf(policy)), mode: "lines+markers", x: axes[0].values,
      y: ys.map((v) => (v === Infinity ? null : v)), text: ys.map((v) => told(chosen.figure, v === Infinity ? null : v)),
      hovertemplate: "%{x}: <b>%{text}</b><extra>%{fullData.name}</extra>",
    };
  });
  const edges = data.break_even.flatMap(({ policy, pays }) =>
    pays.flat().filter((edge) => edge !== null).map((edge) => ({ policy, edge })));
  draw(plot, traces, layout({
    height: 380, showlegend: true, legend: { orientation: "h", y: 1.12 }, xaxis: realAxis(0),
    yaxis: axis({ rangemode: "tozero", tickformat: chosen.figure === GAIN ? "+.0%" : "" }),
    margin: { l: 60, r: 14, t: 30, b: 46 },
    shapes: edges.map(({ policy, edge }) => ({
      type: "line", x0: edge, x1: edge, yref: "paper", y0: 0, y1: 1,
      line: { color: css(looks[names.indexOf(policy)].tint), width: 1.2, dash: "dot" },
    })),
  }));
  plot.setAttribute("aria-label", `${label(chosen.figure)}: ${traces.map((t) => `${t.name} ${t.text.join(", ")}`).join("; ")}`);
}

// ---- break-even

/** Along one of the first two axes, over the other: where paying begins and where it ends. */
function breakEvens() {
  const drawn = axes.slice(0, 2).map((a) => a.parameter);
  const somewhere = data.break_even.some(
    (found) => drawn.includes(found.along) && sliced(found) && found.pays.length);
  const pairs = axes.length < 2 || !somewhere ? [] : [[0, 1], [1, 0]];
  const placed = plots("evens", pairs.map(([along, over]) =>
    [`Along ${axes[along].parameter}`, `the first edge of where it pays, over ${axes[over].parameter}`]));
  pairs.forEach(([along, over], k) => {
    const here = data.break_even.filter((found) => found.along === axes[along].parameter && sliced(found));
    const values = axes[along].values;
    const traces = far.map((policy) => {
      const mine = axes[over].values.map((v) =>
        here.find((found) => found.policy === policy && found.at[axes[over].parameter] === v));
      const inside = (found) => found.pays.flat().find((edge) => edge !== null);
      const edge = (found) => inside(found) ?? (found.pays.length ? values[0] : null);
      return {
        ...lineOf(names.indexOf(policy)), mode: "lines+markers", x: axes[over].values, y: mine.map(edge),
        marker: { size: 8, symbol: mine.map((found) => (inside(found) === undefined ? "circle-open" : "circle")) },
        text: mine.map((found) => plain(found.text)),
        hovertemplate: `%{x}: <b>%{text}</b><extra>%{fullData.name}</extra>`, connectgaps: false,
      };
    });
    const log = axes[along].log;
    const pad = log ? 0.05 : 0.05 * (values.at(-1) - values[0]);
    const range = [values[0], values.at(-1)].map((v) => (log ? Math.log10(v) : v));
    draw(placed[k], traces, layout({
      height: 330, showlegend: true, legend: { orientation: "h", y: 1.14 },
      xaxis: realAxis(over), yaxis: realAxis(along, { range: [range[0] - pad, range[1] + pad] }),
      margin: { l: 64, r: 14, t: 30, b: 46 },
    }));
    placed[k].setAttribute("aria-label", traces.map((t) => `${t.name}: ${t.text.join(", ")}`).join("; "));
  });
  const along = axes[0].parameter;
  const rows = data.break_even.filter((found) => found.along === along && found.policy === far[0]);
  at("even-table").replaceChildren(
    make("thead", {}, make("tr", {}, ...axes.slice(1).map((a) => make("th", { scope: "col", text: a.parameter })),
      ...far.map((policy) => make("th", { scope: "col", text: policy, style: tint(names.indexOf(policy)) })))),
    make("tbody", {}, ...rows.map((row) => make("tr", {},
      ...axes.slice(1).map((a, i) => make("th", { scope: "row", text: texts[i + 1][index(a, row.at[a.parameter])] })),
      ...far.map((policy) => make("td", { text: data.break_even.find((found) =>
        found.along === along && found.policy === policy
        && Object.entries(row.at).every(([name, v]) => found.at[name] === v)).text }))))));
}

// ---- every point, words, and what can be pressed

function points() {
  const shown = shownPolicies();
  at("points").replaceChildren(
    make("caption", { text: label(chosen.figure), style: { "text-align": "left", color: "var(--soft)", "font-size": "13px", padding: "4px 2px" } }),
    make("thead", {}, make("tr", {}, ...axes.map((a) => make("th", { scope: "col", text: a.parameter })),
      ...shown.map((policy) => make("th", { scope: "col", style: tint(names.indexOf(policy)) }, make("span", { class: "dot" }), policy)))),
    make("tbody", {}, ...cells.map((cell) => make("tr", {},
      ...cell.at.map((v, i) => make("th", { scope: "row", text: texts[i][index(axes[i], v)] })),
      ...shown.map((policy) => {
        const v = value(cell, policy, chosen.figure);
        return make("td", { text: v === Infinity ? "only here" : told(chosen.figure, v) });
      })))));
}

function words() {
  for (const [name, text] of data.facts) at("facts").append(make("dt", { text: name }), make("dd", { text }));
  const strong = (text) => make("b", { text });
  far.forEach((policy, i) => {
    const count = cells.filter((cell) => value(cell, policy, GAIN) > 0).length;
    at("verdict").append(i ? " " : "", strong(policy), " pays more than ", strong(near), " at ",
      strong(`${count} of ${cells.length}`), " points.");
  });
  at("map").textContent = paying ? "Where the far site pays" : "Over the grid";
  at("map-lead").textContent = !paying ? "" : axes.length > 1
    ? `Held against ${near}, by ${lower(measured)}. The line is the break-even; blue is where it pays.`
    : `Held against ${near}, by ${lower(measured)}. Dotted lines are where a policy begins or ends to pay.`;
  at("even-lead").textContent =
    `Where each policy begins or ends to give more ${lower(measured)} than ${near}. An open circle: it does everywhere.`;
  at("even-section").hidden = !paying;
}

function drawAll() {
  if (axes.length > 1) maps(); else curves();
  if (paying) breakEvens();
  points();
}

function options(select, all, change) {
  select.append(...all.map((text, i) => make("option", { value: i, text })));
  select.addEventListener("change", () => { change(Number(select.value)); drawAll(); });
}

words();
options(at("figure"), figures.map(label), (i) => { chosen.figure = figures[i]; });
if (axes.length > 2) {
  const select = make("select", { id: "slice" });
  at("slices").append(make("label", {}, `${axes[2].parameter} `, select));
  options(select, texts[2], (i) => { chosen.slice = i; });
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
document.documentElement.dataset.drawn = "yes";
