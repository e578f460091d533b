// Types and keys: the checkpoint's evidence for the job spec, and sample records decoded with it.

import { card, h } from "./dom.js";
import { count } from "./format.js";

export function evidence(answer) {
  const found = answer.plan?.evidence;
  if (!found) return card("Types and keys", "evidence", h("p", { class: "quiet" }, "No plan yet, or one of a version that took no sample."));
  return card("Types and keys", "evidence", found.map(exchange));
}

function exchange(each) {
  return h(
    "div", { class: "stack", "data-testid": `evidence-${each.name}` },
    h("h3", {}, `Exchange ${each.name}`),
    each.key && claim("key", each.key),
    each.types && claim("types", each.types),
    each.sample.rows.length > 0 && samples(each.sample),
  );
}

function claim(name, finding) {
  return h(
    "p", { "data-testid": `claim-${name}` },
    h("span", { class: `pill ${finding.proven ? "good" : "warn"}` }, `${name}: ${finding.from}, ${finding.proven ? "proven" : "unproven"}`),
    " ", h("span", { class: "quiet" }, finding.reason),
  );
}

/** Three rows, and the smallest and largest value of each field: a wrong type shows as garbage. */
function samples(sample) {
  const names = Object.keys(sample.rows[0]);
  const cell = (value) => h("td", { class: "clip", title: text(value) }, text(value));
  const ends = (place) => names.map((name) => cell(sample.ranges[name]?.[place] ?? null));
  return h(
    "div", { class: "scroll" },
    h(
      "table", { "data-testid": "sample-rows" },
      h("thead", {}, h("tr", {}, h("th", {}, `of ${count(sample.records)} sampled`), names.map((name) => h("th", {}, name)))),
      h(
        "tbody", {},
        sample.rows.map((row, place) => h("tr", {}, h("td", { class: "quiet" }, `row ${place + 1}`), names.map((name) => cell(row[name])))),
        h("tr", {}, h("td", { class: "quiet" }, "smallest"), ends(0)),
        h("tr", {}, h("td", { class: "quiet" }, "largest"), ends(1)),
      ),
    ),
  );
}

function text(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
