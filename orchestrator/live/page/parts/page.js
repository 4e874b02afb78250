// Asks the gateway once a second while somebody looks, and draws what it says.

const EVERY_MS = 1000;
const ANSWER_MS = 5000; // a gateway that hangs keeps its connections open
const STORED = "pdd-key";
let chosen = null; // the request whose timeline is shown
let known = null; // and what was last told of it
let last = null; // state

function choose(request) {
  chosen = request;
  known = null;
  if (last) show(last);
  if (request === null) return;
  at("detail").scrollIntoView({ block: "nearest", behavior: "instant" });
}

function drawFigures(state) {
  const { requests } = state;
  const told = [["open", figure(requests.open)], ["queued", figure(requests.queued)],
    ["tokens/s", requests.tokens_per_s === null ? "–" : figure(requests.tokens_per_s)],
    ["requests/s", requests.per_s === null ? "–" : figure(requests.per_s)], ["ended", figure(requests.ended)]];
  at("figures").replaceChildren(...told.map(([name, text]) => make("div", {}, make("dt", { text: name }), make("dd", { text }))));
}
function tell(state, text) {
  at("state").dataset.state = state;
  at("state").textContent = text;
}

function show(state) {
  last = state;
  document.title = `${state.model} · PDD`;
  at("model").textContent = state.model;
  const wrong = wrongs(state).length;
  tell(state.not_ready ? "lost" : wrong ? "draining" : "up", state.not_ready ? "not ready" : wrong ? `ready, ${count(wrong, "thing")} wrong` : "ready");
  const found = chosen && [...state.open, ...state.recent].find(({ request }) => request === chosen);
  known = found ?? known;
  drawFigures(state);
  drawWrong(state);
  drawMap(state);
  drawFlow(state);
  drawDetail(chosen ? known : null, chosen && !found);
  drawRecent(state);
  drawWorkers(state);
  drawFailing(state);
  at("door").hidden = true;
  at("shown").hidden = false;
  document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn ?? 0) + 1);
}

async function ask() {
  const key = sessionStorage.getItem(STORED);
  try {
    const answer = await fetch("/pdd/state", { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS), headers: key ? { authorization: `Bearer ${key}` } : {} });
    if (answer.status === 401) return lock(key);
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    show(await answer.json());
  } catch (error) {
    tell("lost", "the gateway does not answer");
  }
}
function lock(key) {
  sessionStorage.removeItem(STORED);
  tell("waiting", "locked");
  at("refused").textContent = key ? "The gateway does not know this key." : "";
  at("shown").hidden = true;
  at("model").textContent = "PDD";
  at("door").hidden = false;
}
at("door").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = at("key").value.trim();
  at("key").value = "";
  if (!key) return;
  sessionStorage.setItem(STORED, key);
  ask();
});

at("stages").append(...Object.keys(PHASE_TEXT).map((kind) =>
  make("span", {}, make("i", { style: { "background-color": `var(${TINTS[kind]})` } }), PHASE_TEXT[kind])));
addEventListener("resize", () => { if (last) drawMap(last); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) loop(); });

let asking = false;
async function loop() {
  if (asking) return;
  asking = true;
  while (!document.hidden) {
    if (at("door").hidden) await ask();
    await new Promise((then) => setTimeout(then, EVERY_MS));
  }
  asking = false;
}
loop();
