// What can be done: explain a decision, and change a key with an operator's token.

function result(place, name, ...lines) {
  const box = make("div", { class: "result", "data-state": name }, ...lines);
  byId(place).replaceChildren(box);
  return box;
}

const paragraph = (...words) => make("p", {}, ...words);
const units = (number, currency) => (currency ? amount(number, currency) : `${count(number)} unit${number === 1 ? "" : "s"}`);

// How a bucket stands, in words.
function levelWords(now) {
  const level = now?.level;
  if (!level) return `not known: ${safe(now?.why_not ?? "it was not asked")}`;
  const rest = `${level.currency || level.owed ? left(level) : units(level.remaining)} left`;
  if (level.admits) return `${rest}, admitted`;
  if (now.only_counts) return `${rest}, would refuse, and only counts`;
  return level.admits_at ? `${rest}, refused until ${dated(level.admits_at)}, for ${span(level.admits_in_ms)}` : `${rest}, refused`;
}

const OUTCOMES = { deny: "refused", shadow_deny: "would refuse, and only counts", allow: "admitted", unasked: "not asked" };

byId("explain").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const id = byId("decision").value.trim().toLowerCase();
  try {
    const told = await ask(`api/v1/decisions/${encodeURIComponent(id)}`);
    const { request } = told;
    const limits = told.limits.map((limit) =>
      make(
        "li",
        {},
        make("b", {}, foreign(limit.limit)),
        ` ${limit.tier ? `(tier ${safe(limit.tier)}) ` : ""}${limit.candidate ? "(candidate) " : ""}– ${safe(limit.words)}`,
        paragraph(`${units(limit.cost, limit.currency)} from bucket `, foreign(keyName(limit)), hidden(limit.key) ? ` (${safe(limit.key)})` : ` (${safe(limit.name)} in logs)`),
        paragraph(`then: ${limit.then ? levelWords({ level: limit.then }) : "not asked"} (${OUTCOMES[limit.outcome] ?? safe(limit.outcome)})`),
        paragraph(`now: ${levelWords(limit.now)}`),
      ),
    );
    const retry = told.until ? `, again from ${dated(told.until)}` : "";
    result(
      "explained",
      "",
      paragraph(make("b", {}, `${told.status} ${safe(told.reason)}`), ` at ${dated(told.at)}${retry}`),
      paragraph(make("code", {}, foreign(`${request.method} ${request.host}${request.path}${request.path_is_cut ? "…" : ""}`, 600))),
      paragraph(`client ${safe(request.client ?? "without an address")}${told.caller ? `, caller ${safe(told.caller)}` : ""}${told.tier ? `, tier ${safe(told.tier)}` : ""}; route `, foreign(told.route ?? "none"), told.upstream ? `, limits of upstream ${safe(told.upstream)}` : ""),
      make("ul", {}, ...limits),
    );
  } catch (error) {
    result("explained", "bad", paragraph(safe(error.message)));
  }
});

// The identities and limits of the file, for the form.
function fillChoices({ limits }) {
  const live = limits.filter((limit) => !limit.candidate);
  const names = [...new Set(live.map((limit) => limit.limit))];
  const identities = [...new Set(live.flatMap((limit) => (limit.per.length ? limit.per : ["everyone"])))];
  const fingerprint = JSON.stringify([names, identities]);
  if (state.choices === fingerprint) return;
  state.choices = fingerprint;
  byId("identities").replaceChildren(...identities.map((name) => make("option", { value: name })));
  const select = byId("limit");
  const chosen = select.value;
  select.replaceChildren(make("option", { value: "" }, "every limit"), ...names.map((name) => make("option", { value: name }, safe(name))));
  select.value = names.includes(chosen) ? chosen : "";
}

// Writes a key into the form; `kind`: the change.
function prefill(key, kind = action()) {
  const limit = state.figures.limits.find((one) => one.limit === key.limit && !one.candidate);
  const per = limit?.per ?? [];
  const shown = /^(?:address|caller) (.*)$/s.exec(key.key) ?? /^"([^"\\]*)"$/.exec(key.key);
  const value = byId("value");
  // A key that is not shown, and one of several parts, is given by its name in logs alone.
  const named = per.length > 1 || (per.length === 1 && !shown) || per[0] === "descriptor";
  byId("identity").value = named ? key.name : key.key.startsWith("address ") ? "address" : (per[0] ?? "everyone");
  value.value = !named && per.length === 1 ? shown[1] : "";
  byId("limit").value = key.limit;
  document.querySelector(`input[name=action][value=${kind}]`).checked = true;
  showTerms();
  byId("changed").replaceChildren();
  byId("change").scrollIntoView({ block: "nearest" });
  byId("reason").focus({ preventScroll: true });
}

const action = () => document.querySelector("input[name=action]:checked").value;

function showTerms() {
  const kind = action();
  byId("terms").hidden = ["reset", "lift"].includes(kind);
  for (const label of document.querySelectorAll("label.raise")) label.hidden = kind !== "raise";
  for (const label of document.querySelectorAll("label.grant")) label.hidden = kind !== "grant";
  for (const label of document.querySelectorAll("label.lasting")) label.hidden = kind === "grant";
  byId("rate").required = kind === "raise";
  byId("units").required = byId("limit").required = kind === "grant";
}

for (const choice of document.querySelectorAll("input[name=action]")) choice.addEventListener("change", showTerms);
showTerms();

const METHODS = { reset: "POST", grant: "POST", lift: "DELETE" };

// The request for what the form says.
function change(dryRun) {
  const text = (id) => byId(id).value.trim();
  const parts = [text("identity"), ...text("value").split(" / ")].map((part) => part.trim()).filter(Boolean);
  // A browser takes these for steps between directories, and would name another key.
  if (parts.some((part) => part === "." || part === "..")) throw new Error("a browser cannot send this key: use `tollgate key`");
  const body = { reason: text("reason"), dry_run: dryRun };
  if (text("limit")) body.limit = text("limit");
  const kind = action();
  if (!METHODS[kind]) body.for = byId("for").value;
  if (kind === "grant") body.units = text("units");
  if (kind === "raise") body.rate = text("rate");
  if (kind === "raise" && text("burst")) body.burst = Number(text("burst"));
  if (kind === "unlimited" || kind === "block") body[kind] = true;
  const path = `api/v1/keys/${parts.map(encodeURIComponent).join("/")}/${["reset", "grant"].includes(kind) ? kind : "override"}`;
  return { path, method: METHODS[kind] ?? "PUT", body };
}

// An override in words.
function overrideWords(one) {
  if (!one) return "none";
  const numbers = [one.granted && `${safe(one.granted)} more`, one.rate && safe(one.rate), one.burst && `burst ${count(one.burst)}`, one.in_flight && `in_flight ${count(one.in_flight)}`];
  const words = one.block ? "blocked" : one.unlimited ? "no limit" : numbers.filter(Boolean).join(", ");
  return `${words} until ${dated(one.until)}`;
}

// What a change did, for each limit.
function doneWords(done) {
  const filled = (bucket) => `before: ${levelWords(bucket.before)}${done.dry_run ? "" : `; after: ${levelWords(bucket.after)}`}`;
  const overridden = (limit) => `before: ${overrideWords(limit.before)}; after: ${overrideWords(limit.after)}; ${levelWords(limit.now)}`;
  const line = (limit, words) => make("li", {}, make("b", {}, foreign(limit.limit)), `: ${words}`);
  return [...(done.buckets ?? []).map((one) => line(one, filled(one))), ...(done.limits ?? []).map((one) => line(one, overridden(one)))];
}

async function loadOverrides() {
  try {
    const { overrides } = await ask("api/v1/overrides");
    const line = (one) => {
      const lift = make("button", { type: "button", "aria-label": `Lift the override of ${keyName(one)} under ${safe(one.limit)}` }, "Lift…");
      lift.addEventListener("click", () => prefill(one, "lift"));
      const words = make("div", {}, make("bdi", {}, `${of(one)}: ${overrideWords(one)}`), make("small", {}, `${safe(one.operator)}: `, foreign(one.reason), one.why_not ? `; ${safe(one.why_not)}` : ""));
      return make("li", { class: "override" }, words, lift);
    };
    byId("overrides").replaceChildren(...overrides.map(line));
    byId("overrides-title").hidden = overrides.length === 0;
  } catch (error) {
    trouble(`The overrides cannot be read: ${error.message}`);
  }
}

byId("change").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const dryRun = submitted.submitter?.name === "try";
  const buttons = byId("change").querySelectorAll("button");
  for (const button of buttons) button.disabled = true;
  try {
    const { path, method, body } = change(dryRun);
    // The token is in memory only, and no other site can send it.
    const headers = { "content-type": "application/json", authorization: `Bearer ${byId("token").value.trim()}` };
    const done = await ask(path, { method, headers, body: JSON.stringify(body) });
    const title = make("b", {}, done.dry_run ? "Would be changed: " : "Changed: ");
    result("changed", done.dry_run ? "" : "good", paragraph(title, foreign(done.key)), make("ul", {}, ...doneWords(done)), ...(done.notes ?? []).map((note) => paragraph(make("b", {}, "Note: "), foreign(note, 600))));
    if (!dryRun) byId("reason").value = "";
  } catch (error) {
    result("changed", "bad", paragraph(safe(error.message)));
  }
  // It has what was made, or may have been.
  loadAudit();
  for (const button of buttons) button.disabled = false;
  submitted.submitter?.focus();
});

setInterval(() => {
  checkAge();
  // Countdowns go on between two messages.
  if (document.visibilityState === "visible") draw();
}, 1000);
connect();
