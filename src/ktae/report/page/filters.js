"use strict";

// ---- what is shown: all filters hold together

const outcomes = () => (controls.elements.outcome.value ? [controls.elements.outcome.value] : ["correct", "incorrect"]);

function filterPrompts() {
  const wanted = controls.elements.prompt.value.trim().toLowerCase();
  for (const group of groups) group.element.hidden = !(group.prompt.includes(wanted) && hasShown(group));
  reportShown();
}

/* Whether a rollout of a chosen outcome is left, with a token of this |V|, and one with what is searched for. */
function hasShown(group) {
  const { dataset } = group.element;
  const largest = { correct: dataset.largestCorrect, incorrect: dataset.largestIncorrect };
  const left = outcomes().some((outcome) => dataset[outcome] > 0 && Number(largest[outcome]) >= minimum());
  return left && (controls.elements.search.value === "" || count(group) > 0);
}

function filterOutcomes() {
  document.body.dataset.outcome = controls.elements.outcome.value;
  groups.forEach(showCount);
  filterPrompts();
}

function filterTokens() {
  document.body.classList.toggle("filtered", minimum() > 0);
  for (const group of groups) if (group.element.open) paint(group);
  filterPrompts();
}

function reportShown() {
  const visible = groups.filter((group) => !group.element.hidden);
  const found = visible.reduce((sum, group) => sum + count(group), 0);
  const text = `${visible.length} of ${groups.length} prompts`;
  document.getElementById("shown").textContent = controls.elements.search.value ? `${text}, found: ${found} tokens` : text;
}

// ---- search: through one group a frame, so that the page stays responsive

async function search() {
  const query = controls.elements.search.value;
  const pattern = new RegExp(query.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "giu");
  for (const group of groups) {
    group.found = query ? load(group).rollouts.map((rollout) => find(group.data.texts, rollout, pattern)) : [];
    showFound(group);
    if (query) await new Promise((done) => setTimeout(done));
    if (controls.elements.search.value !== query) return; // a later search goes on
  }
  filterPrompts();
}

/* The numbers of the tokens of which a part matches. */
function find(texts, rollout, pattern) {
  const ends = [];
  let text = "";
  for (const kind of rollout.tokens) ends.push((text += texts[kind]).length);
  const found = [];
  let token = 0;
  for (const match of text.matchAll(pattern)) {
    while (ends[token] <= match.index) token++;
    for (let i = token; i < ends.length && (i === token || ends[i - 1] < match.index + match[0].length); i++) {
      if (found.at(-1) !== i) found.push(i);
    }
  }
  return found;
}

/* Tokens found in the rollouts of the chosen outcomes. */
function count(group) {
  const shown = (_, number) => outcomes().includes(outcomeOf(group.data.rollouts[number]));
  return group.found.filter(shown).reduce((sum, tokens) => sum + tokens.length, 0);
}

function showCount(group) {
  const badge = group.element.querySelector(".count");
  badge.hidden = !count(group);
  badge.textContent = `found: ${count(group)} tokens`;
}

function showFound(group) {
  showCount(group);
  for (const span of group.rollouts.querySelectorAll(".found")) span.classList.remove("found");
  group.rollouts.querySelectorAll(".text").forEach((text, number) => {
    for (const token of group.found[number] ?? []) text.children[token].classList.add("found");
  });
}
