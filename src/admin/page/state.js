// The connection to the gateway: documents, the stream of events, and its clock.

const state = {
  figures: null,
  // What to add to this machine's clock for the gateway's.
  offset: 0,
  lastId: "",
  source: null,
  retry: 0,
  // When the last figures came, in this machine's time.
  heard: 0,
  // What is searched for, and the refused keys of the API among which it is.
  search: "",
  hits: [],
  // Rates by limit, and sums: [refused, near, trial] by look.
  series: new Map(),
  // When a counter that must stay zero last grew, in this machine's time.
  inexact: 0,
};

const byId = (id) => document.getElementById(id);
const gatewayNow = () => Date.now() + state.offset;

// Asks for a document. Throws the reason that the gateway gives.
async function ask(path, options = {}) {
  const response = await fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", ...options });
  const text = await response.text();
  let document = null;
  try {
    document = JSON.parse(text);
  } catch {
    // Not a document: its text is the reason.
  }
  if (!response.ok) throw new Error(document?.detail ?? (text.trim() || `status ${response.status}`));
  return document;
}

function link(words, name) {
  const chip = byId("link");
  if (chip.textContent !== words) chip.textContent = words;
  chip.dataset.state = name;
}

function trouble(words) {
  const place = byId("trouble");
  place.hidden = !words;
  if (place.textContent !== words) place.textContent = words;
}

function connect() {
  clearTimeout(state.retry);
  state.source?.close();
  const after = state.lastId ? `?after=${encodeURIComponent(state.lastId)}` : "";
  const source = new EventSource(`api/v1/events${after}`);
  state.source = source;
  source.onopen = () => link("live", "good");
  source.onerror = () => {
    link("connecting", "wait");
    if (source.readyState === EventSource.CLOSED) {
      // Refused, for example because there are too many readers: the browser does not try again.
      link("not connected", "bad");
      state.retry = setTimeout(connect, 5000);
    }
  };
  const on = (name, take) =>
    source.addEventListener(name, (message) => {
      if (message.lastEventId) state.lastId = message.lastEventId;
      try {
        take(JSON.parse(message.data), name);
      } catch (error) {
        trouble(`A message of the gateway cannot be shown: ${error.message}`);
      }
    });
  on("hello", (hello) => {
    const { timeZone } = Intl.DateTimeFormat().resolvedOptions();
    say(byId("zone"), `times in ${timeZone}`);
    byId("gateway").textContent = `${hello.version} at ${location.host}`;
    if (hello.missed) addEvent({ at: hello.at }, "missed");
    loadAudit();
    loadOverrides();
  });
  on("figures", (figures) => {
    state.offset = Date.parse(figures.at) - Date.now();
    state.figures = figures;
    state.heard = Date.now();
    remember(figures);
    checkAge();
    draw();
  });
  for (const name of Object.keys(EVENTS)) on(name, addEvent);
}

// Figures that nothing confirms any more are grey, with the time that they are of. (A gateway that is
// stopped or cut off closes no connection.)
function checkAge() {
  const old = state.figures !== null && Date.now() - state.heard > 3000;
  document.body.classList.toggle("stale", old);
  byId("stale").hidden = !old;
  if (!old) return;
  const at = clock(state.figures.at);
  say(byId("stale"), `The gateway does not respond. Every figure is of ${at}.`);
  mark(byId("phase"), "bad", `as of ${at}`);
  mark(byId("verdict"), "wait", `as of ${at}`);
  if (byId("link").dataset.state === "good") link("no answer", "bad");
}

// A page that is not looked at costs the gateway nothing.
document.addEventListener("visibilitychange", () => {
  clearTimeout(state.retry);
  if (document.visibilityState === "hidden") {
    state.retry = setTimeout(() => {
      state.source?.close();
      link("paused", "wait");
    }, 30000);
  } else if (state.source?.readyState !== EventSource.OPEN) {
    connect();
  }
});

// The series of the last minute.
function remember(figures) {
  const add = (name, number) => {
    const series = state.series.get(name) ?? [];
    series.push(number ?? 0);
    if (series.length > LOOKS) series.shift();
    state.series.set(name, series);
  };
  const sums = { refused: 0, near: 0, trial: 0 };
  const there = new Set(["\u0000refused", "\u0000near", "\u0000trial"]);
  for (const limit of figures.limits) {
    const rates = limit.per_second;
    if (limit.candidate || limit.mode === "shadow") sums.trial += trialRate(limit);
    if (limit.candidate) continue;
    sums.refused += rates?.refused ?? 0;
    sums.near += rates?.near ?? 0;
    add(nameOf(limit), rates?.refused);
    there.add(nameOf(limit));
  }
  for (const name of ["refused", "near", "trial"]) add(`\u0000${name}`, sums[name]);
  state.sums = sums;
  for (const name of state.series.keys()) if (!there.has(name)) state.series.delete(name);
  const { ungoverned, key_evictions, inherited_refusals, store } = figures.exact;
  const faults = ungoverned + key_evictions + inherited_refusals;
  if ((state.faults !== undefined && faults > state.faults) || store?.answers === false) state.inexact = Date.now();
  state.faults = faults;
}

const nameOf = (limit) => `${limit.limit}\u0000${limit.tier ?? ""}\u0000${limit.candidate}`;

// The requests a second that a candidate or a shadow would refuse. A candidate's are those that only
// it refuses, which the gateway counts since the start.
function trialRate(limit) {
  if (!limit.candidate) return limit.per_second?.shadow_refused ?? 0;
  const name = nameOf(limit);
  const now = { at: Date.now(), count: limit.agreement?.only_candidate_refuses ?? 0 };
  const looks = state.trials?.get(name) ?? [];
  looks.push(now);
  if (looks.length > 5) looks.shift();
  (state.trials ??= new Map()).set(name, looks);
  const [first] = looks;
  return now.at > first.at ? ((now.count - first.count) * 1000) / (now.at - first.at) : 0;
}

// The looks of a minute.
const LOOKS = 120;

const matches = (...texts) => texts.join(" ").toLowerCase().includes(state.search);

// The figures have the first keys only: a search reads the lists of the API.
async function searchAll() {
  const { refused, limits } = state.figures ?? {};
  state.hits = [];
  if (state.search && refused.found > refused.keys.length) {
    const names = [...new Set(limits.filter((limit) => limit.refused).map((limit) => limit.limit))].slice(0, 50);
    const list = async (name) => (await ask(`api/v1/limits/${encodeURIComponent(name)}/keys?most=1000`)).keys.map((key) => ({ limit: name, ...key }));
    state.hits = (await Promise.all(names.map(list))).flat();
  }
  draw();
}

byId("search").addEventListener("input", () => {
  state.search = byId("search").value.trim().toLowerCase();
  clearTimeout(state.searching);
  state.searching = setTimeout(() => searchAll().catch((error) => trouble(`The search failed: ${error.message}`)), 200);
});
