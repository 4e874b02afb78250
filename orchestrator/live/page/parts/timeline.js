// One request's phases, from its legs: what was waited for, who brought which tokens, when.

const PHASE_TEXT = { queued: "queue", prefill: "prefill", transfer: "KV transfer", relay: "relay decode", main: "main decode" };
const TINTS = { queued: "--queued", prefill: "--prefill", transfer: "--transfer", relay: "--relaying", main: "--main" };

/** Spans of a request: kind, where, seconds from and to, tokens, and what is to be said of it. */
function phases(request) {
  const now = request.age_s;
  const spans = [{ kind: "queued", where: "gateway", from: 0, to: request.routed_s ?? now, open: request.routed_s === null }];
  for (const leg of request.legs) {
    const end = leg.ended_s ?? now;
    if (leg.role === "prefill") {
      spans.push({ kind: "prefill", leg, where: leg.worker, from: leg.opened_s, to: leg.first_s ?? end, open: leg.first_s === null && leg.ended_s === null });
      continue;
    }
    if (leg.kv_s !== null) {
      spans.push({ kind: "transfer", leg, where: `${leg.kv_from ?? "?"} to ${leg.worker}`, from: leg.kv_s,
        to: leg.landed_s ?? end, open: leg.landed_s === null && leg.ended_s === null, unlanded: leg.landed_s === null && leg.ended_s !== null });
    }
    if (leg.first_s !== null) {
      spans.push({ kind: leg.role, leg, where: leg.worker, from: leg.first_s, to: leg.last_s, open: leg.ended_s === null });
    }
  }
  return spans;
}
const indices = ({ leg, kind }) => {
  if (!leg || kind === "transfer" || !leg.tokens) return "";
  const first = leg.first_index, last = first + leg.tokens - 1;
  return first === last ? `token ${first}` : `tokens ${first} to ${last}`;
};
function remark(span, request) {
  const said = [];
  if (span.leg?.lost) said.push("lost");
  if (span.unlanded && !span.leg.lost) said.push(span.to < request.age_s - 0.01 ? "given up" : "not landed when the answer ended");
  if (span.kind === "prefill" && request.cached_tokens) said.push(`${figure(request.cached_tokens)} of ${figure(request.prompt_tokens)} prompt tokens cached`);
  if (span.kind === "main" && span.leg.first_index === request.handoff_index) {
    said.push(`took over at token ${request.handoff_index}` + (request.handoff_gap_s ? `, ${secs(request.handoff_gap_s)} beyond a step` : ""));
  }
  if (span.kind === "transfer" && span.leg.role === "main" && request.kv_bytes_wire) {
    said.push(`${bytes(request.kv_bytes_raw)} of KV, ${bytes(request.kv_bytes_wire)} on the wire`);
  }
  if (span.open) said.push("goes on");
  return said.join("; ");
}
const title = (request) => {
  const how = request.outcome === null ? `${request.phase}, ${secs(request.age_s)} so far`
    : GOOD_ENDS.has(request.outcome) ? `ended after ${secs(request.age_s)}` : `${words(request.outcome)} after ${secs(request.age_s)}`;
  return `${request.route ?? "no route yet"} · ${figure(request.prompt_tokens)} in, ${figure(request.tokens)} out · ${how}`;
};

/** A bar from side to side of what it stands in; `whole`: the seconds of its width. */
function bar(span, whole, className) {
  const left = (100 * span.from) / whole, width = Math.max(0.4, (100 * (span.to - span.from)) / whole);
  return make("i", { class: `${className} ${span.open ? "open" : ""} ${span.leg?.lost ? "lost" : ""} ${span.unlanded ? "unlanded" : ""}`,
    style: { left: `${Math.min(left, 99.6)}%`, width: `${Math.min(width, 100 - left)}%`, "background-color": `var(${TINTS[span.kind]})` } });
}
/** All of a request in one strip: tokens above, KV on its way below. */
function strip(request, whole) {
  const box = make("span", { class: "strip", "aria-hidden": "true" });
  for (const span of phases(request)) box.append(bar(span, whole, span.kind === "transfer" ? "thin" : ""));
  return box;
}

function drawDetail(request, gone) {
  const box = at("detail");
  box.hidden = !request;
  if (!request) return;
  const spans = phases(request), whole = Math.max(request.age_s, 1e-3);
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => make("span", { text: secs(part * whole), style: { left: `${100 * part}%` } }));
  const rows = spans.map((span) => make("tr", { "data-kind": span.kind },
    make("th", { scope: "row" }, make("i", { class: "dot", style: { "background-color": `var(${TINTS[span.kind]})` } }), PHASE_TEXT[span.kind]),
    make("td", { class: "where", text: span.where }),
    make("td", { class: "plot" }, make("span", { class: "lane" }, bar(span, whole, ""))),
    make("td", { class: "num", text: secs(span.from) }),
    make("td", { class: "num", text: secs(span.to - span.from) }),
    make("td", { text: indices(span) }),
    make("td", { class: "remark", text: remark(span, request) })));
  const close = make("button", { type: "button", class: "close", "aria-label": "Close the timeline", text: "✕" });
  close.addEventListener("click", () => choose(null));
  const focused = box.contains(document.activeElement) && document.activeElement.className === "close";
  box.dataset.request = request.request;
  box.replaceChildren(
    make("div", { class: "top" }, make("h3", { text: `Request ${nick(request.request)}` }), make("p", { text: title(request) }), close),
    make("p", { class: "id", text: gone ? `${request.request} · the gateway has forgotten it since` : request.request }),
    make("div", { class: "scroll" }, make("table", { class: "phases" },
      make("thead", {}, make("tr", {}, ...["phase", "where", "", "from", "took", "indices", ""].map((text, i) =>
        i === 2 ? make("th", { class: "plot" }, make("span", { class: "ticks", "aria-hidden": "true" }, ...ticks)) : make("th", { scope: "col", text })))),
      make("tbody", {}, ...rows))));
  if (focused) box.querySelector(".close").focus();
}
