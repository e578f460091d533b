// Makes elements. Every text becomes a text node, so the name of a job, a path or an error is shown and
// never run.

const SVG = "http://www.w3.org/2000/svg";

/** An element; `attributes` may hold `on…` functions, and nothing here ever reads a string as markup. */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Part of a whole in percent, as a style: allowed by the page's policy only when it is set by a script. */
export function across(element, { left = 0, width }) {
  element.style.left = `${100 * left}%`;
  element.style.width = `${100 * width}%`;
  return element;
}

/** Replaces only what differs: an open part stays open, what has the focus keeps it, a selection survives. */
export function redraw(parent, fresh) {
  const old = [...parent.children];
  fresh.forEach((node, place) => {
    const before = old[place];
    if (!before) parent.append(node);
    else if (before.outerHTML !== node.outerHTML) replace(before, node);
  });
  for (const left of old.slice(fresh.length)) left.remove();
}

function replace(before, node) {
  const focused = before.contains(document.activeElement) ? document.activeElement.dataset.testid : undefined;
  const open = [...before.querySelectorAll("details")].map((each) => each.open);
  before.replaceWith(node);
  node.querySelectorAll("details").forEach((each, place) => (each.open = open[place] ?? each.open));
  if (focused) node.querySelector(`[data-testid="${CSS.escape(focused)}"]`)?.focus();
}

export function card(title, testid, body, { side = [], tight = false } = {}) {
  return h(
    "section",
    { class: "card", "data-testid": testid },
    h("div", { class: "head" }, h("h2", {}, title), h("div", { class: "side" }, side)),
    h("div", { class: tight ? "body tight" : "body" }, body),
  );
}

export function empty(what, ...why) {
  return h("div", { class: "empty", "data-testid": "empty" }, h("p", { class: "what" }, what), why.map((line) => h("p", {}, line)));
}

export function notice(kind, testid, what, ...more) {
  return h(
    "div",
    { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "status", "data-testid": testid },
    h("p", { class: "what" }, what),
    more.filter(Boolean).map((line) => h("p", { class: "do" }, line)),
  );
}
