// A report's data and the looks of its policies. What Plotly is given passes `plain`, since Plotly
// reads some markup.

const data = JSON.parse(document.getElementById("data").textContent);
const { policies } = data;
const DASHES = { local: "dot", direct: "dash", relay: "solid", auto: "dashdot" };

let others = 0;
const looks = policies.map(({ policy }) =>
  Object.hasOwn(DASHES, policy)
    ? { tint: `--${policy}`, dash: DASHES[policy] }
    : { tint: `--other${others % 4}`, dash: ["longdash", "solid", "dash", "dot"][others++ % 4] });
const tint = (i) => ({ "--tint": `var(${looks[i].tint})` });
