"use strict";
// Draws what is in #data (see `page.py`). Texts of the user's go in as text, never as markup; what
// Plotly is given passes `plain`, since Plotly reads some markup.
(() => {
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
  const STAGES = ["queued", "prefill", "transfer", "relay", "handoff", "main"];
  const STAGE_TEXT = { transfer: "KV transfer", main: "main decode", relay: "relay decode" };
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

  // ------------------------------------------------------------------------------------- texts

  const digits = (value, n = 3) => String(Number(value.toPrecision(n)));
  const secs = (value) => {
    if (value === null || value === undefined) return "–";
    if (value >= 999.5) return `${Math.round(value)} s`;
    if (value >= 0.9995) return `${digits(value)} s`;
    return value >= 1e-4 ? `${digits(value * 1e3)} ms` : "0";
  };
  const figure = (value) =>
    value === null ? "–" : value >= 1000 ? Math.round(value).toLocaleString("en") : digits(value);
  const percent = (value) => `${(value * 100).toFixed(1)} %`;
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
  const tint = (i) => ({ "--tint": `var(${looks[i].tint})` });

  // ------------------------------------------------------------------------------------ figures

  const font = () => ({ family: css("--sans"), size: 12, color: css("--soft") });
  const axis = (more) => ({
    gridcolor: css("--grid"), linecolor: css("--rule"), zeroline: false, ticks: "",
    automargin: true, fixedrange: false, ...more,
  });
  function layout(more) {
    return {
      font: font(), paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 46, r: 14, t: 10, b: 40 }, height: 270, showlegend: false,
      hoverlabel: {
        bgcolor: css("--card"), bordercolor: css("--rule"),
        font: { family: css("--sans"), size: 12.5, color: css("--ink") }, align: "left",
      },
      ...more,
    };
  }
  const draw = (plot, traces, how) =>
    Plotly.react(plot, traces, how, { displayModeBar: false, displaylogo: false, responsive: true });

  /** A framed plot with its title; the text for those who cannot see it is set when it is drawn. */
  function framed(place, title, small = "") {
    const plot = make("div", { class: "plot", role: "img" });
    const caption = make("figcaption", { text: title });
    if (small) caption.append(make("small", { text: small }));
    at(place).append(make("figure", {}, caption, plot));
    return plot;
  }
  const lineOf = (i, more) => ({
    type: "scatter", mode: "lines", name: plain(policies[i].policy),
    line: { color: css(looks[i].tint), width: 2.4, dash: looks[i].dash, ...more },
  });

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
        told.push(`${policy.policy}: half within ${secs(spread.p50)}, 90 % within ${secs(spread.p90)}`);
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
  const until = Math.max(1, ...data.uses.flatMap(({ policies: each }) =>
    each.map((use) => (use ? use.every_s * use.samples.length : 0))));
  const [unit, unitText] = until > 10800 ? [3600, "h"] : until > 900 ? [60, "min"] : [1, "s"];
  const idle = data.uses.filter((use) => busiest(use) < IDLE).map(({ name }) => useTitle(name));
  at("busy-lead").textContent = [
    "Of a line, bytes sent over what it could send; of a pool, slots that decode, or time that prefill computes.",
    data.faults.length ? "Shaded: what was done to the deployment." : "",
    idle.length ? `Idle all the time: ${idle.join(", ")}.` : "",
  ].filter(Boolean).join(" ");

  function drawUses() {
    const shapes = data.faults.map((fault) => ({
      type: "rect", layer: "below", yref: "paper", y0: 0, y1: 1, line: { width: 0 },
      x0: fault.at_s / unit, x1: (fault.until_s ?? until) / unit, fillcolor: css("--fault"),
      label: {
        text: plain(short(fault.text)), textposition: "top left", padding: 4,
        font: { size: 11, color: css("--fault-ink"), family: css("--sans") },
      },
    }));
    busy.forEach(({ name, policies: each }, which) => {
      const traces = [], told = [];
      each.forEach((use, i) => {
        if (!shown(i) || !use) return;
        const mean = use.samples.reduce((a, b) => a + b, 0) / use.samples.length;
        told.push(`${policies[i].policy}: mean ${percent(mean)}`);
        traces.push({
          ...lineOf(i, { width: 1.7, dash: "solid", shape: "hv" }),
          x: use.samples.map((_, k) => (k * use.every_s) / unit), y: use.samples,
          hovertemplate: `<b>%{y:.1%}</b> at %{x:.4~g} ${unitText}<extra>%{fullData.name}</extra>`,
        });
      });
      const peak = busiest(busy[which]);
      draw(usePlots[which], traces, layout({
        height: 220, shapes,
        xaxis: axis({ range: [0, until / unit], ticksuffix: ` ${unitText}`, nticks: 7 }),
        yaxis: axis({ range: [0, Math.min(1.04, Math.max(peak * 1.15, 0.05))], tickformat: ".3~p", nticks: 6 }),
      }));
      usePlots[which].setAttribute("aria-label", `Use of ${useTitle(name)} over time. ${told.join("; ")}`);
    });
  }

  // -------------------------------------------------------------------------------- one request

  const requests = timelines.requests;
  const waits = (request) =>
    request.policies.map((one) => one?.second_token_s).filter((wait) => wait !== null && wait !== undefined);
  const telling = (request) => {
    const found = waits(request);
    return found.length ? Math.max(...found) - Math.min(...found) + 1e-6 * Math.max(...found) : -1;
  };
  const label = (request) => {
    const found = waits(request).map((wait) => secs(wait)).join(" / ");
    return `${request.name} · ${request.prompt.toLocaleString("en")} tokens, asked at ` +
      `${secs(request.asked_at)}${found ? ` · second token ${found}` : ""}`;
  };
  if (requests.length) {
    state.request = requests.reduce((a, b) => (telling(b) > telling(a) ? b : a)).name;
    at("one-lead").textContent = "The same request under each policy, in seconds from when it was asked. " +
      (timelines.of > requests.length
        ? `${requests.length} of the ${timelines.of} requests whose stages were written down.`
        : `The stages of ${timelines.of} requests were written down.`);
    at("stages").append(...STAGES.map((stage) =>
      make("span", {}, make("i", { style: { background: `var(${stage === "relay" ? "--relaying" : `--${stage}`})` } }),
        STAGE_TEXT[stage] ?? stage)));
    fillSelect("");
  } else {
    at("one-lead").textContent = "No request's stages were written down; `timelines: 100` in the scenario does it for every hundredth.";
    for (const id of ["one-controls", "stages", "timeline"]) at(id).hidden = true;
    at("one-controls").style.display = at("timeline").style.display = "none";
  }
  const timelinePlot = make("div", { class: "plot", role: "img" });
  at("timeline").append(timelinePlot);

  function fillSelect(words) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const some = requests.filter((request) =>
      wanted.every((word) => label(request).toLowerCase().includes(word)));
    at("request").replaceChildren(...some.map((request) => {
      const option = make("option", { value: request.name, text: label(request) });
      option.selected = request.name === state.request;
      return option;
    }));
    if (!some.length) at("request").append(make("option", { value: "", text: "no request is called so" }));
    else if (!some.some((request) => request.name === state.request)) state.request = some[0].name;
  }

  /** Rows for spans: what follows each other shares one; transfers have their own. */
  function lanes(spans) {
    const rows = [];
    for (const span of spans.filter(([stage]) => stage !== "transfer")) place(rows, "stages", span);
    for (const span of spans.filter(([stage]) => stage === "transfer")) place(rows, "KV", span);
    return rows;
  }
  function place(rows, kind, span) {
    const row = rows.find((one) => one.kind === kind && one.spans.at(-1)[3] <= span[2] + 1e-9);
    if (row) row.spans.push(span);
    else rows.push({ kind, spans: [span] });
  }

  function drawTimeline() {
    const request = requests.find(({ name }) => name === state.request);
    if (!request) return;
    const rows = [];
    request.policies.forEach((one, i) => {
      if (!one || !shown(i)) return;
      lanes(one.spans).forEach((lane, k) => rows.push({ ...lane, i, first: k === 0 }));
    });
    let y = 0;
    for (const row of rows) row.y = y += row.first ? 1.55 : 1;
    const all = rows.flatMap((row) => row.spans.map((span) => ({ span, row })));
    const end = Math.max(1e-3, ...all.map(({ span }) => span[3]));
    // The start: until every policy has handed over, or given its second token.
    const early = request.policies.flatMap((one, i) => (one && shown(i)
      ? [one.second_token_s ?? 0, ...one.spans.filter(([stage]) => stage !== "main").map((span) => span[3])]
      : []));
    const to = state.zoom === "all" ? end * 1.02 : Math.min(end * 1.02, Math.max(...early, 1e-3) * 1.35);
    const traces = STAGES.map((stage) => {
      const some = all.filter(({ span }) => span[0] === stage);
      return {
        type: "bar", orientation: "h", name: STAGE_TEXT[stage] ?? stage,
        base: some.map(({ span }) => span[2]), x: some.map(({ span }) => Math.max(span[3] - span[2], to / 700)),
        y: some.map(({ row }) => row.y), width: 0.74,
        marker: { color: stageTint(stage), line: { width: 0 } },
        text: some.map(({ span }) => (span[3] - span[2] > to / 12 ? `${stage} ${secs(span[3] - span[2])}` : "")),
        textposition: "inside", insidetextanchor: "start", constraintext: "none",
        textfont: { color: css("--on-bar"), size: 11.5 }, textangle: 0,
        customdata: some.map(({ span }) => [plain(span[1]), secs(span[3] - span[2]), secs(span[2]), secs(span[3])]),
        hovertemplate: "<b>%{fullData.name}</b> %{customdata[1]}<br>%{customdata[0]}<br>" +
          "%{customdata[2]} to %{customdata[3]}<extra></extra>",
      };
    });
    const marks = [["ttft_s", "first token", "circle"], ["second_token_s", "second token", "diamond"]];
    for (const [name, text, symbol] of marks) {
      const firsts = rows.filter((row) => row.first && request.policies[row.i][name] !== null);
      traces.push({
        type: "scatter", mode: "markers", name: text,
        x: firsts.map((row) => request.policies[row.i][name]), y: firsts.map((row) => row.y - 0.56),
        marker: { symbol, size: 9, color: firsts.map((row) => css(looks[row.i].tint)), line: { width: 1, color: css("--card") } },
        text: firsts.map((row) => secs(request.policies[row.i][name])),
        hovertemplate: `<b>${text}</b> after %{text}<extra></extra>`,
      });
    }
    draw(timelinePlot, traces, layout({
      barmode: "overlay", height: 62 + 27 * y, margin: { l: 70, r: 14, t: 4, b: 36 },
      xaxis: axis({ range: [0, to], ticksuffix: " s", nticks: 9 }),
      yaxis: axis({
        range: [y + 0.7, 0.6], showgrid: false, fixedrange: true, tickvals: rows.map((row) => row.y),
        ticktext: rows.map((row) => (row.first
          ? `<b>${plain(short(policies[row.i].policy))}</b>` : row.kind)),
        tickfont: { size: 13, color: css("--ink") },
      }),
    }));
    timelinePlot.setAttribute("aria-label", `Timeline of request ${request.name}; its figures are in the table below`);
    timelinePlot.dataset.request = request.name;
    requestTable(request);
  }

  function requestTable(request) {
    const rows = [
      ...METRICS.map(([name, title]) => [title, (one) => secs(one[name])]),
      ["Tokens", (one) => figure(one.tokens)],
      ["Prompt found at prefill", (one) => percent(request.prompt ? one.prefill_hit / request.prompt : 0)],
      ["Prompt found at main", (one) => percent(request.prompt ? one.main_hit / request.prompt : 0)],
    ];
    at("request-table").replaceChildren(
      make("caption", { text: `Request ${request.name}`, style: { "text-align": "left", padding: "4px 2px", "font-weight": "620" } }),
      head(), make("tbody", {}, ...rows.map(([title, text]) =>
        make("tr", {}, make("th", { scope: "row", text: title }), ...request.policies.map((one) =>
          make("td", { text: one ? text(one) : "–" }))))));
  }

  // --------------------------------------------------------------------- what never changes again

  function head() {
    return make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "\u00a0"),
      ...policies.map(({ policy }, i) =>
        make("th", { scope: "col", style: tint(i) }, make("span", { class: "dot" }), policy))));
  }

  function summaryTable() {
    at("summary").append(
      make("caption", { text: "● the best of a row", style: { "text-align": "left", color: "var(--soft)", "font-size": "13px", padding: "4px 2px" } }),
      head(), make("tbody", {}, ...data.rows.map(({ title, texts, best }, k) => {
        const next = title.startsWith(" ");
        const opens = !next && data.rows[k + 1]?.title.startsWith(" ");
        return make("tr", { class: next ? "next" : opens ? "first" : "" },
          make("th", { scope: "row", text: title.trim() }),
          ...texts.map((text, i) =>
            make("td", { text, class: best[i] ? "best" : "", style: tint(i) })));
      })));
  }

  function cards() {
    policies.forEach((policy, i) => {
      const failed = Object.entries(policy.failed).map(([why, count]) => `${count} ${why}`).join(", ");
      const rows = [
        ["first token, P90", secs(policy.metrics.ttft_s.p90)],
        ["exposed stall, P90", secs(policy.metrics.exposed_stall_s.p90)],
        ["within the SLO", percent(policy.within_slo)],
        ["goodput", `${figure(policy.goodput_per_s)}/s`],
        ["cost per million tokens", figure(policy.cost_per_million_tokens)],
        ["failed", failed || "none"],
      ];
      at("cards").append(make("article", { class: "card", style: tint(i) },
        make("h3", { text: policy.policy }),
        make("div", { class: "big", text: secs(policy.metrics.second_token_s.p90) }),
        make("p", { class: "what", text: "to the second token, P90" }),
        make("dl", {}, ...rows.flatMap(([name, text]) => [make("dt", { text: name }), make("dd", { text })]))));
    });
  }

  function verdict() {
    const said = [];
    const strong = (text) => make("b", { text });
    const wait = (policy) => policy.metrics.second_token_s.p90;
    const known = policies.filter((policy) => wait(policy) !== null).sort((a, b) => wait(a) - wait(b));
    if (known.length > 1 && wait(known.at(-1)) > 0) {
      const [best, worst] = [known[0], known.at(-1)];
      const less = 1 - wait(best) / wait(worst);
      said.push("Nine of ten users have their second token within ", strong(secs(wait(best))), " under ",
        strong(best.policy), ` and within ${secs(wait(worst))} under `, strong(worst.policy),
        less >= 0.005 ? `: ${Math.round(less * 100)} % sooner. ` : ". ");
    }
    const paid = policies.filter((policy) => policy.goodput_per_cost !== null)
      .sort((a, b) => b.goodput_per_cost - a.goodput_per_cost);
    if (paid.length > 1 && paid[0].goodput_per_cost > paid.at(-1).goodput_per_cost) {
      said.push("For the same money ", strong(paid[0].policy), " serves the most requests within the SLO: ",
        strong(`${figure(paid[0].goodput_per_cost)} per unit of cost`), ".");
    }
    at("verdict").append(...said);
  }

  function facts() {
    const all = [...data.facts,
      ["slo", `TTFT ${secs(slo.ttft_s)}, TPOT ${secs(slo.tpot_s)}`],
      ...(data.faults.length ? [["faults", data.faults.map((fault) =>
        `${fault.text}, from ${secs(fault.at_s)} ${fault.until_s === null ? "on" : `to ${secs(fault.until_s)}`}`).join("\n")]] : [])];
    for (const [name, text] of all) {
      at("facts").append(make("dt", { text: name }), make("dd", { text, class: name === "command" ? "code" : "" }));
    }
  }

  function legend() {
    policies.forEach(({ policy }, i) => {
      const button = make("button", { type: "button", class: "policy", "aria-pressed": "true", "data-policy": policy });
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("width", 28);
      svg.setAttribute("height", 8);
      svg.setAttribute("aria-hidden", "true");
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      for (const [name, value] of Object.entries({ x1: 0, x2: 28, y1: 4, y2: 4, "stroke-width": 3 })) line.setAttribute(name, value);
      line.style.stroke = `var(${looks[i].tint})`;
      line.setAttribute("stroke-dasharray", SVG_DASHES[looks[i].dash]);
      svg.append(line);
      button.append(svg, policy);
      button.addEventListener("click", () => {
        if (!state.hidden.delete(i)) state.hidden.add(i);
        button.setAttribute("aria-pressed", String(shown(i)));
        drawAll();
      });
      at("policies").append(button);
    });
  }

  function choice(attribute, chosen) {
    const buttons = [...document.querySelectorAll(`[data-${attribute}]`)];
    for (const button of buttons) {
      button.addEventListener("click", () => {
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        chosen(button.dataset[attribute]);
      });
    }
  }

  function drawAll() {
    drawCdfs();
    drawCosts();
    drawUses();
    drawTimeline();
  }

  facts();
  verdict();
  legend();
  cards();
  summaryTable();
  choice("axis", (chosen) => { state.axis = chosen; drawCdfs(); });
  choice("zoom", (chosen) => { state.zoom = chosen; drawTimeline(); });
  at("request").addEventListener("change", (event) => { state.request = event.target.value; drawTimeline(); });
  at("find").addEventListener("input", (event) => { fillSelect(event.target.value); drawTimeline(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
  document.documentElement.dataset.drawn = "yes";
})();
