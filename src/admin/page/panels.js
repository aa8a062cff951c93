// The panels: refused, close, candidates and shadows, exact, lately.

function draw() {
  const { figures } = state;
  if (!figures || document.body.classList.contains("stale")) return;
  const phase = byId("phase");
  mark(phase, figures.phase === "serving" ? "good" : "wait", figures.phase);
  say(byId("generation"), `configuration ${count(figures.generation)}, ${count(figures.connections)} connections`);
  trouble(figures.last_error ? `The last reload was refused; the configuration in force stays.\n${safe(figures.last_error)}` : "");
  drawRefused(figures);
  drawLimits(figures);
  drawNear(figures);
  drawTrials(figures);
  drawShadow(figures);
  drawExact(figures);
  fillChoices(figures);
  announce(figures);
}

function big(id, number, words, shown = count(number)) {
  const place = byId(id);
  say(place, shown);
  if (words) say(place.nextElementSibling, words);
  place.parentElement.classList.toggle("some", number > 0);
}

const keys = (number) => (number === 1 ? "key" : "keys");
const keyCell = (key) => make("span", {}, foreign(keyName(key)), make("small", {}, hidden(key.key) ? safe(key.key) : `${key.name} in logs`), make("small", { class: "narrow-only" }, limitWords(key)));
const limitWords = (key) => safe(key.limit) + (key.tier ? ` (tier ${safe(key.tier)})` : "");
const wanted = (key) => matches(key.key, key.name, limitWords(key));
const nameOfKey = (key) => [key.limit, key.name, key.key].join("\u0000");

// The keys that are refused now.
function drawRefused({ refused }) {
  big("refused-count", refused.found, keys(refused.found));
  spark(byId("refused-spark"), state.series.get("\u0000refused") ?? [], "Refusals");
  const fill = (key) => {
    const made = row(keyCell(key), "words wide-only", "until", "number", "wide-only", "act");
    const act = make("button", { type: "button", "aria-label": `Change ${keyName(key)} under ${limitWords(key)}` }, "Change…");
    act.addEventListener("click", () => prefill(made.item));
    made.lastElementChild.append(act);
    return made;
  };
  const shown = (state.search && state.hits.length ? state.hits : refused.keys).filter(wanted);
  rows(byId("refused-keys"), shown, nameOfKey, fill, (line, key) => {
    const [, limit, until, lost, since] = line.cells;
    say(limit, limitWords(key));
    say(until, untilWords(key));
    say(lost, key.count_error ? `${count(key.count - key.count_error)}–${count(key.count)}` : count(key.count));
    say(since, dated(key.since));
  });
  byId("refused-empty").hidden = shown.length > 0;
  say(byId("refused-empty"), refused.found ? "No refused key is found." : "No key is refused.");
  more("refused-more", refused);
}

function untilWords(key) {
  const blocked = key.override?.block && !key.override.why_not;
  const by = key.override?.operator === "penalty" ? "a penalty" : "an operator";
  return endWords(key) + (blocked ? `, blocked by ${by}` : "");
}

function endWords(key) {
  if (!key.until) return key.now.why_not ? "not known" : "a place is free";
  const left = Date.parse(key.until) - gatewayNow();
  return left > 0 ? `${dated(key.until)}, in ${span(left)}` : "now";
}

function more(id, keys) {
  const others = keys.found - keys.keys.length;
  const words = [];
  if (others > 0) words.push(`${count(others)} more: the list of the API has them.`);
  if (keys.unseen > 0) words.push(`Keys with at most ${count(keys.unseen)} requests may be missing.`);
  byId(id).hidden = words.length === 0;
  say(byId(id), words.join(" "));
}

function drawLimits({ limits }) {
  const live = limits.filter((limit) => !limit.candidate && limit.mode !== "off");
  const busy = (limit) => [limit.per_second?.refused ?? 0, limit.refused, limit.allowed];
  const sorted = [...live].sort((one, other) => {
    const [a, b] = [busy(one), busy(other)];
    return b[0] - a[0] || b[1] - a[1] || b[2] - a[2];
  });
  const found = sorted.filter((limit) => matches(limitWords(limit), safe(limit.words)));
  const shown = found.slice(0, LIMITS_SHOWN);
  const fill = (limit) => {
    const tier = limit.tier ? ` (tier ${safe(limit.tier)})` : "";
    const made = row(make("span", {}, foreign(limit.limit), tier, make("small")), "number", "number", "wide-only", "number wide-only");
    made.cells[3].append(make("div", { class: "spark red" }));
    return made;
  };
  rows(byId("limits"), shown, nameOf, fill, (line, limit) => {
    const [name, allowed, refused, series, all] = line.cells;
    const store = limit.store === "shared" ? ", shared" : "";
    say(name.querySelector("small"), safe(limit.words) + store + (limit.mode === "shadow" ? ", shadow" : ""));
    say(allowed, perSecond(limit.per_second?.allowed));
    say(refused, perSecond(limit.per_second?.refused));
    spark(series.firstElementChild, state.series.get(nameOf(limit)) ?? [], `Refusals of ${safe(limit.limit)}`);
    say(all, count(limit.refused));
  });
  byId("limits-empty").hidden = live.length > 0;
  byId("limits-more").hidden = found.length <= shown.length;
  say(byId("limits-more"), `${count(found.length - shown.length)} more limits refuse less.`);
}

function drawNear({ near }) {
  big("near-count", near.found, `${keys(near.found)} at 80 %`);
  spark(byId("near-spark"), state.series.get("\u0000near") ?? [], "Requests that left at most a fifth");
  rows(byId("near-keys"), near.keys.filter(wanted), nameOfKey, (key) => row(keyCell(key), "words wide-only", "number", ""), (line, key) => {
    const [, limit, units, full] = line.cells;
    say(limit, limitWords(key));
    const level = key.now.level;
    say(units, level ? left(level) : "not known");
    say(full, level ? span(level.full_in_ms) : "–");
  });
  byId("near-empty").hidden = near.found > 0;
  more("near-more", near);
}

// The keys that limits in shadow mode, and candidates, would refuse.
function drawShadow({ shadow }) {
  const keys = shadow?.keys.filter(wanted) ?? [];
  byId("shadow-title").hidden = !shadow?.found;
  rows(byId("shadow-keys"), keys, nameOfKey, (key) => row(keyCell(key), "words wide-only", "number", "until"), (line, key) => {
    const [, limit, lost, until] = line.cells;
    say(limit, limitWords(key));
    say(lost, count(key.count));
    say(until, endWords(key));
  });
  more("shadow-more", shadow ?? { found: 0, keys: [] });
}

function drawTrials({ limits }) {
  const trials = limits.filter((limit) => limit.candidate || limit.mode === "shadow");
  const rate = state.sums?.trial ?? 0;
  big("trial-count", rate, null, trials.length ? perSecond(rate) : "–");
  byId("trial-spark").hidden = trials.length === 0;
  spark(byId("trial-spark"), state.series.get("\u0000trial") ?? [], "Would-be refusals");
  const fill = (limit) => row(make("span", {}, foreign(limit.limit), make("small"), make("small", { class: "narrow-only" }, safe(limit.words))), "words wide-only", "number", "number", "number wide-only");
  rows(byId("trials"), trials, nameOf, fill, (line, limit) => {
    const [name, judges, refuse, admit, of] = line.cells;
    const tier = limit.tier ? `tier ${safe(limit.tier)}, ` : "";
    say(name.querySelector("small"), `${tier}${limit.candidate ? "candidate" : "shadow"}`);
    say(judges, safe(limit.words));
    const seen = limit.agreement ?? { only_candidate_refuses: limit.shadow_refused, only_live_refuses: 0, both_allow: limit.allowed, both_refuse: limit.refused };
    const all = seen.both_allow + seen.both_refuse + seen.only_live_refuses + seen.only_candidate_refuses;
    const share = (number) => (all && number ? `${count(number)} (${((100 * number) / all).toFixed(number * 100 < all ? 2 : 1)} %)` : count(number));
    say(refuse, share(seen.only_candidate_refuses));
    say(admit, limit.candidate ? share(seen.only_live_refuses) : "–");
    say(of, count(all));
  });
  byId("trial-empty").hidden = trials.length > 0;
}

function drawExact({ exact, generation, last_error: lastError }) {
  const { store } = exact;
  const zero = (id, number) => mark(byId(id), number ? "was" : "good", count(number));
  if (!store) mark(byId("exact-store"), "good", "none: every limit is local");
  else if (store.answers) {
    const words = `${safe(store.kind)} responds, shared by ${count(store.replicas)}`;
    mark(byId("exact-store"), store.why_not ? "was" : "good", store.why_not ? `${words}; ${safe(store.why_not)}` : words);
  } else mark(byId("exact-store"), "bad", `${safe(store.kind)} does not respond: ${safe(store.when_down)}; ${safe(store.why_not)}`);
  zero("exact-ungoverned", exact.ungoverned);
  zero("exact-evictions", exact.key_evictions);
  zero("exact-inherited", exact.inherited_refusals);
  const out = exact.upstreams_out;
  const servers = out.slice(0, 5).map((one) => `${safe(one.upstream)} ${safe(one.server)} (${safe(one.state)})`).join(", ");
  mark(byId("exact-upstreams"), out.length ? "was" : "good", out.length ? `${count(out.length)}: ${servers}` : "0");
  mark(byId("exact-configuration"), lastError ? "was" : "good", lastError ? "the last reload was refused" : `number ${count(generation)} is in force`);
  const faults = state.faults ?? 0;
  const fresh = Date.now() - state.inexact < 60000;
  if (store?.answers === false) mark(byId("verdict"), "bad", "not exact: the store is down");
  else if (fresh) mark(byId("verdict"), "bad", "not exact in the last minute");
  else if (faults) mark(byId("verdict"), "was", "exact now, not always");
  else mark(byId("verdict"), "good", "exact since the start");
}

// A change in words for those who do not see the page, at most every ten seconds.
function announce({ refused, exact }) {
  const verdict = exact.store?.answers === false ? "The store does not respond." : "";
  const words = `${refused.found === 1 ? "1 key is" : `${count(refused.found)} keys are`} refused now. ${verdict}`.trim();
  if (words === state.announced || Date.now() - (state.announcedAt ?? 0) < 10000) return;
  if (state.announced !== undefined) say(byId("announce"), words);
  state.announced = words;
  state.announcedAt = Date.now();
}

const of = (event) => `${keyWords(event)} under ${safe(event.limit)}`;
const EVENTS = {
  refusals_began: ["bad", (event) => `${of(event)} is refused${event.until ? ` until ${dated(event.until)}` : ""}`],
  refusals_ended: ["good", (event) => `${of(event)} is admitted again; ${count(event.count)} requests lost`],
  near: ["warn", (event) => `${of(event)} has used 80 %`],
  omitted: ["warn", (event) => `more keys: ${count(event.refusals_began)} began, ${count(event.refusals_ended)} ended, ${count(event.near)} close`],
  store_down: ["bad", (event) => `the store does not respond: ${safe(event.why_not)}`],
  store_up: ["good", () => "the store responds"],
  upstream_out: ["bad", (event) => `${safe(event.upstream)} ${safe(event.server)} is ${safe(event.state)}: ${safe(event.error)}`],
  upstream_back: ["good", (event) => `${safe(event.upstream)} ${safe(event.server)} is back`],
  reload: ["act", (event) => (event.good ? `configuration ${count(event.generation)} is in force` : `reload refused: ${safe(event.message).slice(0, 200)}`)],
  reset: ["act", (event) => `${safe(event.operator)} filled ${of(event)}${event.outcome === "unconfirmed" ? " (not confirmed by the store)" : ""}: ${safe(event.reason)}`],
  override_set: ["act", (event) => `${event.operator === "penalty" ? "a penalty" : safe(event.operator ?? "an operator")}: ${of(event)} ${overrideWords(event)}: ${safe(event.reason)}`],
  override_ended: ["act", (event) => `the override of ${of(event)} ended`],
};

function addEvent(event, name) {
  const [tone, words] = name === "missed" ? ["warn", () => "events are missing here"] : EVENTS[name];
  const list = byId("events");
  list.prepend(make("li", { class: "event", "data-tone": tone }, make("time", { datetime: event.at }, clock(event.at)), make("div", {}, make("bdi", {}, words(event)))));
  while (list.childElementCount > EVENTS_SHOWN) list.lastElementChild.remove();
  byId("events-empty").hidden = true;
  if (["reset", "override_set", "override_ended"].includes(name)) {
    loadAudit();
    loadOverrides();
  }
}

async function loadAudit() {
  try {
    const { entries } = await ask("api/v1/audit");
    const line = (entry) => {
      // The end as this page writes times.
      const end = entry.until ?? entry.after?.until;
      const what = end ? safe(entry.words).replace(` until ${end}`, () => ` until ${dated(end)}`) : safe(entry.words);
      const words = make("div", {}, make("bdi", {}, what), make("small", {}, foreign(entry.reason), entry.from ? ` from ${safe(entry.from)}` : ""));
      return make("li", { class: "event", "data-tone": "act" }, make("time", { datetime: entry.at }, dated(entry.at)), words);
    };
    byId("audit").replaceChildren(...entries.slice(0, AUDIT_SHOWN).map(line));
    byId("audit-empty").hidden = entries.length > 0;
  } catch (error) {
    trouble(`The audit cannot be read: ${error.message}`);
  }
}

const LIMITS_SHOWN = 12;
const EVENTS_SHOWN = 100;
const AUDIT_SHOWN = 10;
