// The connection to the gateway: documents, the stream of events, and its clock.

const state = {
  figures: null,
  // What to add to this machine's clock for the gateway's.
  offset: 0,
  lastId: "",
  source: null,
  retry: 0,
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
    byId("gateway").textContent = `${hello.version} at ${location.host}`;
    if (hello.missed) addEvent({ at: hello.at }, "missed");
    loadAudit();
    loadOverrides();
  });
  on("figures", (figures) => {
    state.offset = Date.parse(figures.at) - Date.now();
    state.figures = figures;
    remember(figures);
    draw();
  });
  for (const name of Object.keys(EVENTS)) on(name, addEvent);
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
