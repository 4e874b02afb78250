// What is written once, and what the reader can press.

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
  // What the relay is for, if both are here; else the two that are furthest apart.
  const named = ["relay", "direct"].map((name) => known.find(({ policy }) => policy === name));
  const [one, other] = named.every(Boolean) ? named : [known[0], known.at(-1)];
  if (known.length > 1 && wait(other) > 0) {
    const less = Math.round((1 - wait(one) / wait(other)) * 100);
    said.push("Nine of ten users have their second token within ", strong(secs(wait(one))), " under ",
      strong(one.policy), ", within ", strong(secs(wait(other))), " under ", strong(other.policy),
      less ? `: ${Math.abs(less)}% ${less > 0 ? "sooner" : "later"}. ` : ". ");
  }
  const paid = policies.filter((policy) => policy.goodput_per_cost !== null)
    .sort((a, b) => b.goodput_per_cost - a.goodput_per_cost);
  if (paid.length > 1 && paid[0].goodput_per_cost > 1.01 * paid[1].goodput_per_cost) {
    said.push("For the same money ", strong(paid[0].policy), " serves the most requests within the SLO: ",
      strong(`${figure(paid[0].goodput_per_cost)} per unit of cost`), ".");
  }
  at("verdict").append(...said);
}

function facts() {
  const all = [...data.facts,
    ["slo", `TTFT ${secs(slo.ttft_s)}, TPOT ${secs(slo.tpot_s)}${
      slo.second_token_s === null ? "" : `, second token ${secs(slo.second_token_s)}`}`],
    ...(data.faults.length ? [["faults", data.faults.map((fault) =>
      `${fault.text}, from ${secs(fault.at_s)} ${fault.until_s === null ? "on" : `to ${secs(fault.until_s)}`}`).join("\n")]] : [])];
  for (const [name, text] of all) {
    at("facts").append(make("dt", { text: name }), make("dd", { text, class: name === "command" ? "code" : "" }));
  }
}

function decisions() {
  policies.forEach(({ policy, roles }, i) => {
    if (!roles.length) return;
    at("roles").hidden = false;
    at("decisions").append(
      make("dt", { style: tint(i) }, make("span", { class: "dot" }), policy),
      ...roles.map((text) => make("dd", { text })));
  });
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
decisions();
choice("axis", (chosen) => { state.axis = chosen; drawCdfs(); });
choice("zoom", (chosen) => { state.zoom = chosen; drawTimeline(); });
at("request").addEventListener("change", (event) => { state.request = event.target.value; drawTimeline(); });
at("find").addEventListener("input", (event) => { fillSelect(event.target.value); drawTimeline(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
document.documentElement.dataset.drawn = "yes";
