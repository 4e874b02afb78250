// What all plots have in common.

const font = () => ({ family: css("--sans"), size: 12, color: css("--soft") });
const axis = (more) => ({
  gridcolor: css("--grid"), linecolor: css("--rule"), zeroline: false, ticks: "",
  automargin: true, fixedrange: false, ...more,
});
function layout(more) {
  return {
    font: font(), paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 46, r: 14, t: 10, b: 28 }, height: 270, showlegend: false,
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
