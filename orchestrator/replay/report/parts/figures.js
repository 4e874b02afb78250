// Distributions, cost, and use over time.

const cdfPlots = METRICS.map(([name, title, goal]) =>
  framed("cdfs", title, goal === null ? "" : `SLO ${secs(goal)}`));

function drawCdfs() {
  METRICS.forEach(([name, title, goal], which) => {
    const traces = [];
    let most = 0, least = Infinity, told = [];
    policies.forEach((policy, i) => {
      const curve = data.cdfs[i][name];
      if (!shown(i) || !curve.x.length) return;
      const spread = policy.metrics[name];
      most = Math.max(most, spread.p99);
      least = Math.min(least, ...curve.x.filter((x) => x > 0));
      told.push(`${policy.policy}: half within ${secs(spread.p50)}, 90% within ${secs(spread.p90)}`);
      traces.push({
        ...lineOf(i), x: curve.x, y: curve.y, text: curve.x.map(secs),
        hovertemplate: "<b>%{y:.1%}</b> within %{text}<extra>%{fullData.name}</extra>",
      });
    });
    const log = state.axis === "log" && least < Infinity;
    const floor = log ? Math.floor(Math.log10(Math.max(least, 1e-4)) * 4) / 4 : 0;
    const ceiling = Math.max(...traces.map((trace) => trace.x.at(-1)), most, 1e-3);
    const range = log ? [floor, Math.log10(ceiling) + 0.05] : [0, Math.max(most * 1.12, 1e-3)];
    const ticks = log
      ? [1e-4, 1e-3, 0.01, 0.1, 1, 10, 100, 1000, 1e4].flatMap((t) =>
          range[1] - range[0] < 1.6 ? [t, 2 * t, 5 * t] : range[1] - range[0] < 2.6 ? [t, 3 * t] : [t])
      : undefined;
    const goals = goal === null ? [] : [{
      type: "line", x0: goal, x1: goal, yref: "paper", y0: 0, y1: 1, layer: "below",
      line: { color: css("--faint"), width: 1.5, dash: "dot" },
    }];
    draw(cdfPlots[which], traces, layout({
      xaxis: axis({
        type: log ? "log" : "linear", range,
        ...(ticks ? { tickvals: ticks, ticktext: ticks.map((t) => secs(t)) }
                  : { ticksuffix: " s", nticks: 7 }),
      }),
      yaxis: axis({ range: [0, 1.02], tickformat: ".0%", tickvals: [0, 0.25, 0.5, 0.75, 0.9, 1] }),
      shapes: goals,
    }));
    cdfPlots[which].setAttribute("aria-label", `${title}, distribution. ${told.join("; ")}`);
  });
}

// ---------------------------------------------------------------------------------------- cost

const COSTS = [
  ["cost_per_million_tokens", "Cost per million output tokens", "lower is better"],
  ["goodput_per_s", "Goodput, requests/s within the SLO", "higher is better"],
  ["goodput_per_cost", "Requests within the SLO per unit of cost", "higher is better"],
].filter(([name]) => policies.some((policy) => policy[name] !== null));
const costPlots = COSTS.map(([, title, small]) => framed("costs", title, small));
at("money-lead").textContent = policies.some((policy) => policy.cost !== null)
  ? `Goodput counts requests with TTFT within ${secs(slo.ttft_s)} and TPOT within ${secs(slo.tpot_s)}; ` +
    "cost is in the currency of the scenario's prices."
  : `Some pool has no price, so there is no cost. Goodput counts requests with TTFT within ` +
    `${secs(slo.ttft_s)} and TPOT within ${secs(slo.tpot_s)}.`;

function drawCosts() {
  COSTS.forEach(([name, title], which) => {
    const some = policies.map((_, i) => i).filter((i) => shown(i) && policies[i][name] !== null);
    const values = some.map((i) => policies[i][name]);
    draw(costPlots[which], [{
      type: "bar", orientation: "h", x: values, y: some, width: 0.58,
      marker: { color: some.map((i) => css(looks[i].tint)), cornerradius: 4 },
      text: values.map(figure), textposition: "outside", cliponaxis: false,
      textfont: { color: css("--ink"), size: 13 },
      hovertemplate: "%{text}<extra></extra>",
    }], layout({
      height: 70 + 40 * some.length, margin: { l: 40, r: 60, t: 4, b: 24 },
      xaxis: axis({ rangemode: "tozero", nticks: 5 }),
      yaxis: axis({
        tickvals: some, ticktext: some.map((i) => plain(short(policies[i].policy))),
        autorange: "reversed", showgrid: false, tickfont: { color: css("--ink"), size: 13 },
      }),
    }));
    costPlots[which].setAttribute("aria-label", `${title}. ` +
      some.map((i) => `${policies[i].policy}: ${figure(policies[i][name])}`).join("; "));
  });
}

// ----------------------------------------------------------------------------------------- use

const IDLE = 0.002;
const busiest = ({ policies: each }) => Math.max(0, ...each.flatMap((use) => use?.samples ?? []));
const busy = data.uses.filter((use) => busiest(use) >= IDLE);
const useTitle = (name) => {
  const [kind, what] = [name.slice(0, name.indexOf(":")), name.slice(name.indexOf(":") + 1)];
  return kind === "line" ? `Line ${what.replace(">", " → ")}` : `Pool ${what}`;
};
const usePlots = busy.map(({ name }) => framed("uses", useTitle(name)));
const lastBusy = (use) => use.every_s * (1 + use.samples.findLastIndex((sample) => sample > 0));
const until = Math.max(1, ...data.uses.flatMap(({ policies: each }) =>
  each.map((use) => (use ? lastBusy(use) : 0))));
const [unit, unitText] = until > 10800 ? [3600, "h"] : until > 900 ? [60, "min"] : [1, "s"];
const idle = data.uses.filter((use) => busiest(use) < IDLE).map(({ name }) => useTitle(name));
at("busy-lead").textContent = [
  "Of a line, bytes sent over what it could send; of a pool, slots that decode, or time that prefill computes.",
  data.faults.length ? "Shaded: what was done to the deployment." : "",
  idle.length ? `Idle all the time: ${idle.join(", ")}.` : "",
].filter(Boolean).join(" ");

/** A lane for each policy, so that none hides another. */
function drawUses() {
  const windows = data.faults.filter((fault) => fault.at_s < until)
    .map((fault) => [fault, fault.at_s / unit, (fault.until_s ?? until) / unit]);
  const shapes = windows.map(([, from, to]) => ({
    type: "rect", layer: "below", yref: "paper", y0: 0, y1: 1, line: { width: 0 },
    x0: from, x1: to, fillcolor: css("--fault"),
  }));
  const faultTexts = windows.map(([fault, from]) => ({
    x: from, y: 1, yref: "paper", yanchor: "bottom", showarrow: false, text: plain(short(fault.text)),
    xanchor: from > (0.6 * until) / unit ? "right" : "left",
    font: { size: 11, color: css("--fault-ink"), family: css("--sans") },
  }));
  busy.forEach(({ name, policies: each }, which) => {
    const lanes = each.map((use, i) => [use, i]).filter(([use, i]) => use && shown(i));
    const peak = Math.min(1, busiest(busy[which]));
    const told = [], traces = [], axes = {}, names = [];
    lanes.forEach(([use, i], k) => {
      const y = k ? `y${k + 1}` : "y";
      const top = 1 - (k + 0.28) / lanes.length, bottom = 1 - (k + 1) / lanes.length;
      const mean = use.samples.reduce((a, b) => a + b, 0) / use.samples.length;
      told.push(`${policies[i].policy}: mean ${percent(mean)}`);
      traces.push({
        ...lineOf(i, { width: 1.2, dash: "solid", shape: "hv" }), yaxis: y, fill: "tozeroy",
        fillcolor: `${css(looks[i].tint)}55`,
        x: use.samples.map((_, n) => (n * use.every_s) / unit), y: use.samples,
        hovertemplate: `<b>%{y:.1%}</b> at %{x:.4~g} ${unitText}<extra>%{fullData.name}</extra>`,
      });
      axes[`yaxis${k ? k + 1 : ""}`] = axis({
        domain: [bottom, top], range: [0, peak * 1.04], tickvals: [0, peak], fixedrange: true,
        ticktext: ["0", percent(peak).replace(".0%", "%")], automargin: false,
      });
      names.push({
        xref: "paper", x: 0, yref: "paper", y: top, xanchor: "left", yanchor: "bottom", showarrow: false,
        text: `<b>${plain(short(policies[i].policy))}</b>  mean ${percent(mean)}`,
        font: { size: 11.5, color: css("--soft"), family: css("--sans") },
      });
    });
    draw(usePlots[which], traces, layout({
      height: 60 + 68 * Math.max(1, lanes.length), shapes, annotations: [...faultTexts, ...names],
      margin: { l: 46, r: 14, t: windows.length ? 18 : 0, b: 26 }, ...axes,
      xaxis: axis({ range: [0, until / unit], ticksuffix: ` ${unitText}`, nticks: 7, anchor: "free", position: 0 }),
    }));
    usePlots[which].setAttribute("aria-label", `Use of ${useTitle(name)} over time. ${told.join("; ")}`);
  });
}
