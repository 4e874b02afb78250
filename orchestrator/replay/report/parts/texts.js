// What is shown and how: the data (see `page.py`), and what the user chose.

const { slo, timelines } = data;
const state = { hidden: new Set(), axis: "log", zoom: "start", request: null };
const METRICS = [
  ["ttft_s", "Time to first token", slo.ttft_s],
  ["second_token_s", "Second token", slo.second_token_s],
  ["exposed_stall_s", "Exposed stall", null],
  ["tpot_s", "Time per output token", slo.tpot_s],
  ["end_to_end_s", "End to end", null],
];
const STAGES = ["queued", "prefill", "transfer", "stall", "relay", "handoff", "main"];
const STAGE_TEXT = {
  transfer: "KV transfer", stall: "waiting for KV", main: "main decode", relay: "relay decode",
};
const LETTERS = { queued: "--on-light", transfer: "--on-light", stall: "--ink" };
const SVG_DASHES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "8 3 2 3", longdash: "10 4" };
const stageTint = (stage) => css(stage === "relay" ? "--relaying" : `--${stage}`);
const shown = (i) => !state.hidden.has(i);
