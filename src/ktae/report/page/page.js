"use strict";

const LEVELS = 4;
const scale = Number(document.body.dataset.scale);
const controls = document.getElementById("controls");
const groups = [...document.querySelectorAll("details.group")].map((element) => ({
  element,
  rollouts: element.querySelector(".rollouts"),
  prompt: [".label", ".prompt"].map((part) => element.querySelector(part).textContent.toLowerCase()).join("\n"),
  data: null, // parsed when first needed
  opening: null, // while its rollouts are added
  tokens: [], // {span, row, rollout, at} of all tokens while the group is open
  marked: null, // row whose occurrences are marked
  found: [], // of each rollout, the numbers of the tokens that match the search
}));
const outcomeOf = (rollout) => (rollout.correct ? "correct" : "incorrect");
const groupOf = (node) => groups.find((group) => group.element.contains(node));

// ---- groups: their tokens exist while they are open

function load(group) {
  group.data ??= JSON.parse(group.element.querySelector("script").textContent);
  return group.data;
}

/* One rollout at a time, so that the page stays responsive. */
async function open(group) {
  const opening = (group.opening = {});
  group.rollouts.setAttribute("aria-busy", "true");
  for (const [number, rollout] of load(group).rollouts.entries()) {
    const first = group.tokens.length;
    group.rollouts.append(rolloutElement(group, rollout, number));
    paint(group, group.tokens.slice(first));
    await new Promise((done) => setTimeout(done));
    if (group.opening !== opening) return; // closed meanwhile
  }
  group.rollouts.removeAttribute("aria-busy");
  if (group.marked !== null) mark(group, group.marked);
  showFound(group);
}

function close(group) {
  group.opening = null;
  group.rollouts.removeAttribute("aria-busy");
  group.rollouts.replaceChildren();
  group.tokens = [];
  group.marked = null;
}

function rolloutElement(group, rollout, number) {
  const outcome = outcomeOf(rollout);
  const title = element("h3", `${rollout.correct ? "✓" : "✗"} Rollout ${number + 1}, ${outcome}, `);
  title.append("A", element("sub", "i"), ` = ${signed(rollout.advantage)}, ${rollout.tokens.length} tokens`);
  const text = element("p");
  text.className = "text";
  text.dir = "auto";
  text.setAttribute("role", "group");
  text.setAttribute("aria-label", `Rollout ${number + 1}, ${outcome}`);
  for (const [at, kind] of rollout.tokens.entries()) {
    const span = element("span", group.data.texts[kind]);
    span.dataset.token = group.tokens.length;
    group.tokens.push({ span, row: group.data.rows[kind], rollout, at });
    text.append(span);
  }
  if (text.firstChild) makeCurrent(text.firstChild);
  else text.append("(empty)");
  const section = element("section");
  section.className = `rollout ${outcome}`;
  section.append(title, text);
  return section;
}

function element(name, text = "") {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

// ---- colours

const byAdvantage = () => controls.elements.colour.value === "advantage";
const colourLimit = () => (byAdvantage() ? 1 + scale : scale) || 1;
const minimum = () => Number(controls.elements.minimum.value) || 0;

function level(value) {
  const step = Math.min(LEVELS, Math.ceil((LEVELS * Math.abs(value)) / colourLimit()));
  return value < 0 ? -step : step;
}

/* Those that training used are in the file, or not. */
const advantageOf = ({ rollout, at }, value) => rollout.advantages?.[at] ?? rollout.advantage + value;

function paint(group, tokens = group.tokens) {
  const values = group.data.table.V;
  const least = minimum();
  const advantage = byAdvantage();
  for (const token of tokens) {
    const value = values[token.row];
    const shown = Math.abs(value) >= least;
    token.span.dataset.level = shown ? level(advantage ? advantageOf(token, value) : value) : 0;
  }
}

function paintLegend() {
  const steps = Array.from({ length: 2 * LEVELS + 1 }, (_, i) => i - LEVELS);
  const legend = document.getElementById("legend");
  legend.replaceChildren(...steps.map(legendElement));
  const limit = signed(colourLimit());
  const name = byAdvantage() ? "Advantage" : "Key-token value";
  legend.setAttribute("aria-label", `${name}: negative orange, dashed underline; positive blue, solid; strongest at ${limit}`);
}

function legendElement(step) {
  const bound = (steps) => signed((Math.sign(step) * steps * colourLimit()) / LEVELS);
  const size = Math.abs(step);
  const open = size === LEVELS && byAdvantage(); // there are larger advantages, in the same colour
  const swatch = element("span", step === 0 ? "0" : `${bound(size - 1)} to ${open ? "…" : bound(size)}`);
  swatch.dataset.level = step;
  return swatch;
}

// ---- statistics of the token under the pointer or focus

function show(group, token) {
  const table = group.data.table;
  const values = Object.fromEntries(Object.entries(table).map(([name, column]) => [name, column[token.row]]));
  values.advantage = advantageOf(token, values.V);
  for (const cell of document.querySelectorAll("[data-of]")) {
    const name = cell.dataset.of;
    const isSigned = ["advantage", "V", "h", "D"].includes(name);
    cell.textContent = isSigned ? signed(values[name]) : String(Number(values[name].toPrecision(3)));
  }
  document.getElementById("sentence").textContent = sentence(token.span.textContent, values);
  document.getElementById("statistics").hidden = false;
}

function sentence(text, { a, b, c, d, n, p, V, advantage }) {
  const where = `in ${a} of ${a + c} correct and ${b} of ${b + d} incorrect rollouts, ${n} times in all`;
  const token = text ? `\u2068“${text}”\u2069` : "The rest of the character";
  return `${token}: key-token value ${signed(V)}, advantage ${signed(advantage)}; ${where}; ${document.body.dataset.pName} = ${Number(p.toPrecision(3))}`;
}

function signed(value) {
  const rounded = Number(value.toPrecision(3));
  return `${rounded > 0 ? "+" : rounded < 0 ? "−" : ""}${Math.abs(rounded)}`;
}

// ---- marks

function mark(group, row) {
  unmark();
  group.marked = row;
  for (const token of group.tokens) token.span.classList.toggle("marked", token.row === row);
  setPressed(group);
}

function unmark() {
  for (const group of groups.filter((group) => group.marked !== null)) {
    group.marked = null;
    for (const { span } of group.tokens) span.classList.remove("marked");
    setPressed(group);
  }
}

function setPressed(group) {
  for (const span of group.rollouts.querySelectorAll("[tabindex]")) {
    span.setAttribute("aria-pressed", span.classList.contains("marked"));
  }
}

// ---- keyboard: each rollout is one tab stop, at its current token

function makeCurrent(span) {
  for (const other of span.parentElement.querySelectorAll("[tabindex]")) {
    for (const name of ["tabindex", "role", "aria-pressed"]) other.removeAttribute(name);
  }
  span.tabIndex = 0;
  span.setAttribute("role", "button");
  span.setAttribute("aria-pressed", span.classList.contains("marked"));
}

function go(span) {
  if (!span) return;
  makeCurrent(span);
  span.focus();
}

/* The nearest token of the line above (-1) or below (1). */
function ofNextLine(span, step) {
  const next = (node) => (step < 0 ? node.previousElementSibling : node.nextElementSibling);
  let best = null;
  for (let node = next(span); node; node = next(node)) {
    if (node.offsetTop === span.offsetTop) continue;
    if (best && node.offsetTop !== best.offsetTop) break;
    const distance = (other) => Math.abs(other.offsetLeft - span.offsetLeft);
    if (!best || distance(node) < distance(best)) best = node;
  }
  return best;
}

const moves = {
  ArrowRight: (span) => span.nextElementSibling,
  ArrowLeft: (span) => span.previousElementSibling,
  ArrowDown: (span) => ofNextLine(span, 1),
  ArrowUp: (span) => ofNextLine(span, -1),
  Home: (span) => span.parentElement.firstElementChild,
  End: (span) => span.parentElement.lastElementChild,
  Enter: (span) => void span.click(),
  " ": (span) => void span.click(),
};

// ---- events

function tokenAt(event) {
  const span = event.target.closest(".text > span");
  if (!span) return null;
  const group = groupOf(span);
  return { group, token: group.tokens[span.dataset.token] };
}

function onPoint(event) {
  const at = tokenAt(event);
  if (at) show(at.group, at.token);
}

function onClick(event) {
  const at = tokenAt(event);
  if (!at) return;
  go(at.token.span);
  if (at.group.marked === at.token.row) unmark();
  else mark(at.group, at.token.row);
}

function onKey(event) {
  if (event.key === "Escape") unmark();
  const span = event.target.closest(".text > span");
  if (!span || !(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  go(moves[event.key](span));
}

const onInput = {
  colour: () => (paintLegend(), filterTokens()),
  prompt: filterPrompts,
  outcome: filterOutcomes,
  minimum: filterTokens,
  search,
  theme: () => (document.documentElement.dataset.theme = controls.elements.theme.value),
};

for (const group of groups) {
  group.element.addEventListener("toggle", () => (group.element.open ? open : close)(group));
}
document.addEventListener("mouseover", onPoint);
document.addEventListener("focusin", onPoint);
document.addEventListener("click", onClick);
document.addEventListener("keydown", onKey);
controls.addEventListener("input", (event) => onInput[event.target.name]());
controls.addEventListener("submit", (event) => event.preventDefault());
paintLegend();
reportShown();
