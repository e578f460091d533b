// The tab of a DAG run: its recovery, once there is one.

import { get } from "./api.js";
import { empty, h } from "./dom.js";
import { recovery } from "./recovery.js";

export function run(dag, id) {
  let found = null;
  return {
    async load() {
      if (!found) {
        const answer = await get(`runs/${encodeURIComponent(dag)}/${encodeURIComponent(id)}`);
        if (!answer.recovery) return { none: true };
        found = recovery(answer.recovery, false);
      }
      return found.load();
    },
    seconds: (answer) => (answer.none ? 3 : found.seconds(answer)),
    show(answer, refresh) {
      if (!answer.none) return found.show(answer, refresh);
      const why = dag.startsWith("cdr_") ? "It appears here when the first task has read the checkpoint's metadata. A refused request never gets one; the task's log says why." : "Only runs of cdr's own DAGs have one.";
      return h("section", { class: "card" }, empty("This run has no recovery", why));
    },
  };
}
