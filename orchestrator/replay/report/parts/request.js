// The stages of one request, which the reader chooses.

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
    make("span", {}, make("i", { class: stage, style: { "background-color": `var(${stage === "relay" ? "--relaying" : `--${stage}`})` } }),
      STAGE_TEXT[stage] ?? stage)), make("span", { text: "● first token" }), make("span", { text: "◆ second token" }));
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
  const pixels = (timelinePlot.clientWidth - 84) / to; // per second
  const fitting = (text, span) =>
    (Math.min(span[3], to) - span[2]) * pixels > 7 * text.length + 8 ? text : "";
  const traces = STAGES.map((stage) => {
    const some = all.filter(({ span }) => span[0] === stage);
    return {
      type: "bar", orientation: "h", name: STAGE_TEXT[stage] ?? stage,
      base: some.map(({ span }) => span[2]), x: some.map(({ span }) => Math.max(span[3] - span[2], to / 700)),
      y: some.map(({ row }) => row.y), width: 0.74,
      marker: {
        color: stageTint(stage), line: { width: 0 },
        pattern: { shape: stage === "stall" ? "/" : "", size: 7, solidity: 0.12, fgcolor: css("--faint") },
      },
      text: some.map(({ span }) => fitting(`${stage} ${secs(span[3] - span[2])}`, span)),
      textposition: "inside", insidetextanchor: "start", constraintext: "none",
      textfont: { color: css(LETTERS[stage] ?? "--on-bar"), size: 11.5 }, textangle: 0,
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
