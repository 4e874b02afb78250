// Sites as boxes, each direction of a line between them with what it carries.

const BOX = { width: 252, height: 96 };
const STATE_TEXT = { up: "", silent: "silent", draining: "draining", drained: "drained", lost: "lost" };

/** Centres of the boxes: beside each other, below each other where it is narrow, else in a ring. */
function places(sites, width) {
  const n = sites.length;
  const narrow = width < 640;
  const wide = Math.min(BOX.width, width - 24);
  if (n <= 2 && !narrow) {
    return { height: 170, wide, at: sites.map((_, i) => [n === 1 ? width / 2 : i ? width - wide / 2 - 12 : wide / 2 + 12, 85]) };
  }
  if (n <= 2) {
    return { height: n === 1 ? 120 : 330, wide, at: sites.map((_, i) => [width / 2, 60 + 210 * i]) };
  }
  const height = narrow ? 150 * n : Math.max(420, 90 * n);
  const a = (width - wide) / 2 - 12, b = (height - BOX.height) / 2 - 12;
  return {
    height, wide,
    at: sites.map((_, i) => {
      const turn = (2 * Math.PI * i) / n - Math.PI / 2;
      return [width / 2 + (narrow ? 0.62 : 1) * a * Math.cos(turn), height / 2 + b * Math.sin(turn)];
    }),
  };
}

function drawMap(state) {
  const box = at("map");
  const width = Math.max(280, box.clientWidth - 2);
  const { height, wide, at: centres } = places(state.sites, width);
  const where = Object.fromEntries(state.sites.map(({ name }, i) => [name, centres[i]]));
  const svg = draw("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${count(state.sites.length, "site")}: ` + [...state.sites.map(siteText),
      ...state.links.map((link) => `${link.from} to ${link.to}: ${lineWords(link).join(", ")}`)].join(". "),
  });
  for (const link of state.links) {
    if (where[link.from] && where[link.to]) svg.append(drawLine(link, where[link.from], where[link.to], wide));
  }
  state.sites.forEach((site, i) => svg.append(drawSite(site, centres[i], wide, state)));
  box.replaceChildren(svg);
}

function lineWords(link) {
  const bad = BAD_LINES[link.state];
  const carried = rate(link.sending_bytes_per_s || null, link.bandwidth_bytes_per_s);
  return [bad ?? carried, `RTT ${secs(link.rtt_s)}`,
    link.queue_bytes ? `${bytes(link.queue_bytes)} waiting` : "nothing waits"];
}

function drawLine(link, [x0, y0], [x1, y1], wide) {
  const length = Math.hypot(x1 - x0, y1 - y0) || 1;
  const [ux, uy] = [(x1 - x0) / length, (y1 - y0) / length];
  // To its right side: the other direction has the other side. From edge to edge of the boxes.
  const aside = 13;
  const [ox, oy] = [-uy * aside, ux * aside];
  const gap = Math.min(Math.abs(wide / 2 / (ux || 1e-9)), Math.abs(BOX.height / 2 / (uy || 1e-9))) + 4;
  const from = [x0 + ux * gap + ox, y0 + uy * gap + oy], to = [x1 - ux * gap + ox, y1 - uy * gap + oy];
  const bad = link.state in BAD_LINES;
  const load = Math.min(1, (link.sending_bytes_per_s ?? 0) / link.bandwidth_bytes_per_s);
  const ends = { x1: from[0], y1: from[1], x2: to[0], y2: to[1] };
  const group = draw("g", { class: `line ${bad ? "bad" : ""}`, "data-line": `${link.from}>${link.to}` });
  group.append(draw("title", {}, `${link.from} to ${link.to}: ${lineWords(link).join(", ")}`));
  group.append(draw("line", { class: "track", ...ends }));
  if (!bad && load > 0) group.append(draw("line", { class: "flow", ...ends, "stroke-width": 2 + 5 * load }));
  const tip = draw("path", { class: "tip", d: "M-9,-5 L0,0 L-9,5 Z",
    transform: `translate(${to[0]} ${to[1]}) rotate(${(Math.atan2(uy, ux) * 180) / Math.PI})` });
  group.append(tip, lineLabel(link, [(from[0] + to[0]) / 2, (from[1] + to[1]) / 2], [ox, oy], Math.abs(ux) > 0.7));
  return group;
}

function lineLabel(link, [x, y], [ox, oy], flat) {
  const said = lineWords(link);
  // Beside lines that go down there is little room: one thing below the other.
  const rows = flat ? [said.slice(0, 1), said.slice(1)].map((some) => some.join(" · ")) : said;
  const anchor = flat ? "middle" : ox > 0 ? "start" : "end";
  const top = flat ? (oy < 0 ? y - 12 - 15 * (rows.length - 1) : y + 21) : y - 7 * (rows.length - 1) + 4;
  return draw("text", { class: "label", "text-anchor": anchor },
    ...rows.map((text, i) => draw("tspan", { x: flat ? x : x + Math.sign(ox) * 12, y: top + 15 * i,
      class: i ? "" : "first" }, text)));
}

function siteText(site) {
  const up = site.workers.filter((worker) => worker.state === "up").length;
  return `${site.name}: ${up} of ${count(site.workers.length, "worker")} up`;
}

function drawSite(site, [x, y], wide, state) {
  const group = draw("g", { class: `site ${site.state}`, "data-site": site.name,
    transform: `translate(${x - wide / 2} ${y - BOX.height / 2})` });
  const up = site.workers.filter((worker) => worker.state === "up").length;
  const legs = Object.entries(site.workers.reduce((all, worker) => {
    for (const [role, n] of Object.entries(worker.legs)) all[role] = (all[role] ?? 0) + n;
    return all;
  }, {}));
  const note = STATE_TEXT[site.state] || (site.name === state.gateway.site ? "gateway" : "");
  group.append(
    draw("title", {}, siteText(site)),
    draw("rect", { width: wide, height: BOX.height, rx: 11 }),
    draw("text", { class: "name", x: 15, y: 28 }, site.name),
    draw("text", { class: "note", x: wide - 15, y: 28, "text-anchor": "end" }, note),
    draw("text", { class: "soft", x: 15, y: 50 }, `${up} of ${count(site.workers.length, "worker")} up`));
  if (!legs.length) group.append(draw("text", { class: "soft", x: 15, y: 76 }, "idle"));
  let right = 15;
  for (const [role, n] of legs) {
    group.append(draw("circle", { class: `role ${role}`, cx: right + 5, cy: 72, r: 5 }),
      draw("text", { class: "legs", x: right + 15, y: 76 }, `${n} ${role}`));
    right += 27 + 6.7 * `${n} ${role}`.length;
  }
  return group;
}
