// Requests on their way and the last ones, workers by site, what fails.

const COLUMNS = [
  ["queue", "waiting for a place", ["queued"]],
  ["prefill", "the prompt is computed", ["prefill"]],
  ["relay", "the relay decodes, KV is under way", ["relay"]],
  ["waits for KV", "nobody decodes before it has landed", ["main wait"]],
  ["handover", "KV has landed, main takes over", ["race", "cut"]],
  ["main", "main decodes", ["main", "done"]],
];
const FLOW_TINTS = { queue: "--queued", prefill: "--prefill", relay: "--relaying", "waits for KV": "--transfer", handover: "--handoff", main: "--main" };

function drawFlow(state) {
  const shown = state.open.length, open = state.requests.open;
  at("flow-lead").textContent = open === 0 ? "None now."
    : "Each is where its next token comes from. Press one for its timeline." + (shown < open ? ` The oldest ${shown} of ${open}.` : "");
  at("flow").hidden = open === 0;
  keep(at("flow"), COLUMNS, ([name]) => name,
    ([name, what]) => make("div", { class: "column", style: { "--tint": `var(${FLOW_TINTS[name]})` } },
      make("h3", {}, make("b"), ` ${name}`, make("small", { text: what })), make("div", { class: "chips" })),
    (column, [name, , kinds]) => {
      const here = state.open.filter(({ phase }) => kinds.includes(phase));
      column.querySelector("b").textContent = name === "queue" ? Math.max(here.length, state.requests.queued) : here.length;
      column.classList.toggle("empty", here.length === 0);
      keep(column.querySelector(".chips"), here, ({ request }) => request, (request) => pressed("chip", request),
        (chip, request) => {
          chip.textContent = `${nick(request.request)} · ${request.tokens || secs(request.age_s)}`;
          chip.setAttribute("aria-label", `Request ${nick(request.request)}, ${name}, ${request.tokens} tokens, ${secs(request.age_s)}`);
          chip.setAttribute("aria-pressed", String(chosen === request.request));
          chip.classList.toggle("troubled", request.recoveries > 0);
        });
    });
}
function pressed(kind, request) {
  const button = make("button", { type: "button", class: kind, "data-request": request.request });
  button.addEventListener("click", () => choose(chosen === request.request ? null : request.request));
  return button;
}

function drawRecent(state) {
  const some = state.recent;
  at("recent-lead").textContent = some.length ? `The newest first; the gateway remembers ${state.kept}. Press one for its timeline.`
    : "None has ended yet.";
  at("recent").hidden = at("stages").hidden = some.length === 0;
  const whole = Math.max(1e-3, ...some.map(({ age_s }) => age_s));
  keep(at("recent"), some, ({ request }) => request,
    (request) => {
      const button = pressed("row", request);
      button.append(make("b", { text: nick(request.request) }), make("span", { class: "route", text: request.route ?? "none" }),
        strip(request, whole), make("span", { class: "end" }), make("span", { class: "ago" }));
      return make("li", {}, button);
    },
    (item, request) => {
      const button = item.firstChild;
      if (item.dataset.whole !== String(whole)) button.querySelector(".strip").replaceWith(strip(request, whole));
      item.dataset.whole = String(whole);
      const good = GOOD_ENDS.has(request.outcome);
      button.querySelector(".end").textContent = good ? `${secs(request.first_token_s)} to first, ${figure(request.tokens)} out` : words(request.outcome);
      button.querySelector(".end").classList.toggle("bad", !good && request.outcome !== "cancelled");
      button.querySelector(".ago").textContent = ago(request.ended_s_ago);
      button.setAttribute("aria-label", `Request ${nick(request.request)}: ${title(request)}, ${ago(request.ended_s_ago)}`);
      button.setAttribute("aria-expanded", String(chosen === request.request));
    });
}

function meter(used, all, name) {
  const part = all ? Math.min(1, used / all) : 0;
  const box = make("span", { class: "meter", role: "meter", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": all ?? 0, "aria-valuenow": used ?? 0 },
    make("i", { style: { width: `${100 * part}%` } }));
  return make("span", { class: "use" }, box, make("small", { text: all && used !== null ? `${figure(used)} of ${figure(all)}` : "–" }));
}
function drawWorkers(state) {
  at("workers").replaceChildren(...state.sites.map((site) => make("article", { class: "card place", "data-site": site.name },
    make("h3", {}, site.name, make("small", { class: "pill", "data-state": site.state, text: site.state })),
    site.workers.length ? make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, ...["worker", "slots", "KV blocks", "speed"].map((text) => make("th", { scope: "col", text })))),
      make("tbody", {}, ...site.workers.map(workerRow)))) : make("p", { class: "none", text: "no worker has come" }))));
}
function workerRow(worker) {
  const speed = [worker.step_s === null ? "" : `${secs(worker.step_s)} a step`,
    worker.prefill_tokens_per_s === null ? "" : `${figure(Math.round(worker.prefill_tokens_per_s))} tokens/s prefill`,
    worker.prefill_backlog_tokens ? `${figure(worker.prefill_backlog_tokens)} to prefill` : ""].filter(Boolean);
  const state = worker.state === "up" ? "" : worker.state === "silent" ? `silent for ${secs(worker.silent_s)}` : worker.state;
  return make("tr", { class: worker.state },
    make("th", { scope: "row" }, make("b", { text: worker.name.split("/").slice(1).join("/") }),
      make("span", { class: "roles" }, ...worker.roles.map((role) => make("span", { class: `tag ${role}`, text: role }))),
      make("span", { class: "bad", text: state })),
    make("td", {}, meter(worker.slots_used, worker.slots, `slots of ${worker.name}`)),
    make("td", {}, meter(worker.kv_blocks_used, worker.kv_blocks, `KV blocks of ${worker.name}`)),
    make("td", { class: "speed", text: speed.join(", ") || "–" }));
}

/** What is wrong now, the worst first. */
function wrongs(state) {
  const said = [];
  if (state.not_ready) said.push(`The service is not ready: ${state.not_ready}.`);
  for (const site of state.sites) {
    if (site.state === "lost") said.push(`Site ${site.name} is lost: none of its ${count(site.workers.length, "worker")} can be reached.`);
    else if (site.state === "silent") said.push(`Site ${site.name} is silent: its workers have not said a word for ${secs(Math.min(...site.workers.map((w) => w.silent_s)))}.`);
    else if (site.state === "drained") said.push(`Site ${site.name} is drained.`);
    else for (const worker of site.workers) {
      if (worker.state === "down") said.push(`Worker ${worker.name} is down.`);
      if (worker.state === "silent") said.push(`Worker ${worker.name} is silent.`);
      if (worker.state === "draining") said.push(`Worker ${worker.name} drains.`);
    }
  }
  for (const link of state.links) {
    if (link.state === "stalled") said.push(`The line from ${link.from} to ${link.to} stands still: ${bytes(link.queue_bytes)} wait and nothing moves.`);
  }
  const cut = new Set(state.links.filter(({ state }) => state === "silent").map(({ from, to }) => [from, to].sort().join(" and ")));
  for (const ends of cut) said.push(`Nothing is heard over the line between ${ends}: it is cut, or a site is lost.`);
  return said;
}
function drawWrong(state) {
  const said = wrongs(state), list = at("wrong");
  if (list.dataset.said === said.join()) return; // a reader is told what is new only
  list.dataset.said = said.join();
  list.replaceChildren(...said.map((text) => make("li", { text })));
}

function drawFailing(state) {
  const counts = Object.entries(state.counts);
  const failures = make("div", {}, make("h3", { text: "Requests" }));
  if (state.failures.length) {
    failures.append(make("ul", { class: "plainly" }, ...state.failures.map((one) => make("li", {},
      make("b", { text: words(one.cause) }), ` ${nick(one.request)}, ${ago(one.s_ago)}: ${one.message}`))));
  } else failures.append(make("p", { class: "none", text: "No request has failed." }));
  const events = make("div", {}, make("h3", { text: "Events" }));
  if (counts.length) {
    events.append(make("dl", { class: "counts" }, ...counts.flatMap(([name, n]) => [make("dt", { text: words(name) }), make("dd", { text: figure(n) })])));
  } else events.append(make("p", { class: "none", text: "Nothing was lost, late or repaired." }));
  at("failing").replaceChildren(failures, events);
}
