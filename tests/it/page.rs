//! The page of the admin listener in a real browser.

use std::time::Duration;

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::harness::Gateway;
use crate::servers;

/// The token is `test`.
const CONFIG: &str = "[admin]\nlisten = \"127.0.0.1:0\"\noperators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n\
    [log]\naccess = \"off\"\nkeys = \"plain\"\n\
    [limits.per_caller]\nrate = \"1/hour\"\nburst = 2\nper = \"address\"\n\
    [limits.per_key]\nrate = \"1/hour\"\nper = \"header:x-api-key\"\nwhen_missing = \"skip\"\ncandidate = { rate = \"2/hour\" }\n\
    [limits.quiet]\nrate = \"1/hour\"\nper = \"everyone\"\nmode = \"shadow\"\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"per_caller\", \"quiet\"]\n\
    [[routes]]\nmatch = \"/keys\"\nupstream = \"builtin:echo\"\nlimits = [\"per_key\"]\n";

/// Keys that a page would execute, load or be broken by.
const HOSTILE: [&str; 4] = [
    "<script>document.title='taken'</script>",
    "<img src=http://evil.test/a onerror=document.title='taken'>",
    "</table></body><iframe src=http://evil.test/b></iframe>",
    "\u{202e}gnp.exe\u{2066} {style} {{constructor}}",
];

/// The page of a gateway, once it is live.
fn open(gateway: &Gateway, folder: &tempfile::TempDir) -> Browser {
    let mut browser = Browser::start(folder.path());
    let url = format!("http://{}/", gateway.admin());
    browser.call("Page.navigate", json!({ "url": url }));
    browser.until("document.getElementById('link')?.dataset.state === 'good' && document.querySelector('#phase').textContent === 'serving'");
    browser
}

fn text(browser: &mut Browser, selector: &str) -> String {
    let value = browser.value(&format!(
        "document.querySelector({}).innerText",
        json!(selector)
    ));
    value.as_str().unwrap_or_default().to_owned()
}

/// That the page asked for nothing elsewhere, and that nothing was executed or refused.
#[track_caller]
fn assert_undisturbed(gateway: &Gateway, browser: &mut Browser) {
    let own = format!("http://{}/", gateway.admin());
    let requests = browser.requests();
    let outside = |url: &&String| !url.starts_with(&own) && !url.starts_with("data:");
    assert_eq!(requests.iter().find(outside), None, "{requests:?}");
    assert!(requests.contains(&own), "{requests:?}");
    let mut complaints = browser.complaints();
    // The token that was wrong on purpose.
    complaints.retain(|one| !one.contains("401 (Unauthorized)"));
    assert_eq!(complaints, [""; 0]);
    assert_eq!(browser.value("document.title"), "Tollgate");
}

#[test]
fn page_shows_a_refusal_and_an_operator_lets_the_caller_pass() {
    if !servers::available("chromium") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Gateway::start(CONFIG);
    let mut browser = open(&gateway, &folder);
    assert_eq!(text(&mut browser, "#refused-count"), "0");
    assert_eq!(text(&mut browser, "#verdict"), "exact since the start");

    assert_eq!(
        [gateway.get("/a").status, gateway.get("/a").status],
        [200, 200]
    );
    let refused = gateway.get("/a");
    assert_eq!(refused.status, 429);
    browser.until("document.querySelector('#refused-keys tbody tr')");
    let told = gateway.admin_get("/api/v1/limits/per_caller/keys").json();
    let row = browser.value(
        "[...document.querySelector('#refused-keys tbody tr').cells].map(cell => cell.innerText)",
    );
    let cell = |place: usize| row[place].as_str().expect("text").to_owned();
    let name = told["keys"][0]["name"].as_str().expect("a name");
    assert_eq!(cell(0), format!("address 127.0.0.1\n{name} in logs"));
    assert_eq!((cell(1).as_str(), cell(3).as_str()), ("per_caller", "1"));
    assert!(cell(2).ends_with(", in 60 min"), "{row}");
    assert_eq!(text(&mut browser, "#refused-count"), "1");
    browser.until("document.querySelector('#events').innerText.includes('address 127.0.0.1 under per_caller is refused until')");
    let limits = gateway.admin_get("/api/v1/limits").json();
    let limits = limits["limits"].as_array().expect("limits").clone();
    let quiet = limits.iter().find(|limit| limit["limit"] == "quiet");
    let would = format!("{} (", quiet.expect("it is there")["shadow_refused"]);
    let row = "[...document.querySelectorAll('#trials tbody tr')].find(row => row.innerText.startsWith('quiet')).innerText";
    let shadow = browser.value(row);
    let shadow = shadow.as_str().expect("text");
    assert!(
        shadow.contains("shadow") && shadow.contains(&would),
        "{shadow}"
    );

    // Why.
    let id = refused.json()["decision_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    browser.write("decision", &id);
    browser.click("#explain button");
    browser.until("document.querySelector('#explained').innerText.includes('now: 0 units left, refused until')");

    // Letting it pass, by the button in its row.
    browser.click("#refused-keys tbody tr button");
    assert_eq!(
        browser.value("[identity.value, value.value, limit.value]"),
        json!(["address", "127.0.0.1", "per_caller"])
    );
    browser.write("reason", "ticket 4711");
    browser.write("token", "wrong");
    browser.click("button[name=do]");
    browser
        .until("document.querySelector('#changed').innerText.includes('not that of an operator')");
    browser.write("token", "test");
    browser.click("button[name=try]");
    browser.until("document.querySelector('#changed').innerText.includes('Would be changed')");
    assert_eq!(gateway.get("/a").status, 429);
    browser.click("button[name=do]");
    browser.until("document.querySelector('#changed').innerText.startsWith('Changed')");
    assert_eq!(gateway.get("/a").status, 200);
    browser.until("document.querySelector('#audit').innerText.includes('ann filled address 127.0.0.1 under per_caller (before: 0 units')");
    gateway.advance(Duration::from_secs(3));
    browser.until("document.querySelector('#refused-count').textContent === '0' && document.querySelector('#refused-keys').hidden");
    browser.until("document.querySelector('#events').innerText.includes('is admitted again')");

    // No limit until an end, and back.
    while gateway.get("/a").status == 200 {}
    browser.until("document.querySelector('#refused-keys tbody tr button')");
    browser.click("#refused-keys tbody tr button");
    browser.click("input[value=unlimited]");
    browser.write("reason", "a migration");
    browser.click("button[name=do]");
    browser.until("document.querySelector('#changed').innerText.includes('after: no limit until')");
    browser.until("document.querySelector('#overrides').innerText.includes('address 127.0.0.1 under per_caller: no limit until')");
    browser.until(
        "document.querySelector('#events').innerText.includes('ann: address 127.0.0.1 under per_caller no limit until')",
    );
    let codes: Vec<u16> = (0..5).map(|_| gateway.get("/a").status).collect();
    assert_eq!(codes, [200; 5]);
    browser.click("#overrides button");
    browser.write("reason", "it is done");
    browser.click("button[name=do]");
    browser.until("document.querySelector('#overrides').childElementCount === 0");
    assert_eq!(gateway.get("/a").status, 429);
    assert_undisturbed(&gateway, &mut browser);
    let kept = browser
        .value("JSON.stringify([localStorage.length, sessionStorage.length, document.cookie])");
    assert_eq!(kept, "[0,0,\"\"]", "the token stays in memory");
}

#[test]
fn page_changes_a_key_that_it_does_not_show_by_its_name() {
    if !servers::available("chromium") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Gateway::start(&CONFIG.replace("keys = \"plain\"\n", ""));
    let status = || {
        let asked = gateway.request("GET", "/keys", &[("x-api-key", "secret")]);
        asked.status
    };
    let mut browser = open(&gateway, &folder);
    assert_eq!([status(), status()], [200, 429]);
    browser.until("document.querySelectorAll('#refused-keys tbody tr').length === 1");
    browser.click("#refused-keys tbody tr button");
    let listed = gateway.admin_get("/api/v1/limits/per_key/keys").json();
    assert_eq!(
        browser.value("[identity.value, value.value, limit.value]"),
        json!([listed["keys"][0]["name"], "", "per_key"])
    );
    browser.write("reason", "ticket 4711");
    browser.write("token", "test");
    browser.click("button[name=do]");
    browser.until("document.querySelector('#changed').innerText.startsWith('Changed')");
    assert_eq!([status(), status()], [200, 429]);
    assert!(!text(&mut browser, "body").contains("secret"));
    assert_undisturbed(&gateway, &mut browser);
}

#[test]
fn page_shows_hostile_keys_as_text_in_both_colour_schemes() {
    if !servers::available("chromium") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Gateway::start(CONFIG);
    let mut browser = open(&gateway, &folder);
    for key in HOSTILE {
        let status = || {
            gateway
                .request("GET", "/keys", &[("x-api-key", key)])
                .status
        };
        assert_eq!([status(), status()], [200, 429], "{key}");
    }
    browser.until("document.querySelectorAll('#refused-keys tbody tr').length === 4");
    let shown = text(&mut browser, "#refused-keys");
    for key in &HOSTILE[..3] {
        assert!(shown.contains(key), "{key}: {shown}");
    }
    assert!(!shown.contains(['\u{202e}', '\u{2066}']), "{shown}");
    let made =
        browser.value("document.querySelectorAll('script, img, iframe, style, object').length");
    assert_eq!(made, 2, "the page's own script and style");
    // The figures are those of the API.
    let limits = gateway.admin_get("/api/v1/limits").json();
    let limits = limits["limits"].as_array().expect("limits");
    let live = |limit: &&Value| limit["candidate"] == false;
    for limit in limits.iter().filter(live) {
        let row = format!(
            "[...document.querySelectorAll('#limits tbody tr')].find(row => row.innerText.startsWith({} + '\\n')).cells[4].innerText",
            limit["limit"]
        );
        assert_eq!(browser.value(&row), limit["refused"].to_string(), "{limit}");
    }
    let unnamed = browser.value(
        "[...document.querySelectorAll('input, select, button')].filter(it => !it.labels?.length && !it.textContent.trim()).length
         + [...document.querySelectorAll('section')].filter(it => !document.getElementById(it.getAttribute('aria-labelledby'))).length",
    );
    assert_eq!(unnamed, 0, "every control and every section has a name");

    let pictures = ["light", "dark"].map(|scheme| browser.picture(scheme, 1400, 1200));
    browser.picture("light", 390, 1200);
    assert!(pictures.iter().all(|picture| picture.len() > 30_000));
    assert_ne!(pictures[0], pictures[1], "light and dark");
    let overflow = browser
        .value("document.documentElement.scrollWidth - document.documentElement.clientWidth");
    assert_eq!(overflow, 0, "a narrow page does not scroll sideways");
    assert_undisturbed(&gateway, &mut browser);
}

/// The process of the gateway is stopped, so its connections stay open.
#[test]
fn page_of_a_gateway_that_does_not_respond_is_grey_with_the_time_of_its_figures() {
    if !servers::available("chromium") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Gateway::start(CONFIG);
    let mut browser = open(&gateway, &folder);
    assert_eq!(browser.value("document.body.className"), "");
    let zone = text(&mut browser, "#zone");
    assert!(zone.starts_with("times in "), "{zone}");
    // A frozen gateway sends nothing: the page hears no more.
    browser.value("state.source.close()");
    browser.until("document.body.classList.contains('stale')");
    let at = browser.value("clock(state.figures.at)");
    let at = at.as_str().expect("a time");
    for place in ["#stale", "#verdict", "#phase"] {
        let told = text(&mut browser, place);
        assert!(told.contains(at), "{place}: {told}");
    }
    let opacity = browser.value("getComputedStyle(document.getElementById('refused')).opacity");
    assert_eq!(opacity, "0.5");
    browser.value("connect()");
    browser.until("!document.body.classList.contains('stale') && document.querySelector('#phase').textContent === 'serving'");
    assert_eq!(text(&mut browser, "#verdict"), "exact since the start");
    gateway.shutdown();
    browser.until("document.body.classList.contains('stale') && document.getElementById('link').dataset.state !== 'good'");
}

/// Keys that are not shown have one text: only their names in logs tell them apart.
#[test]
fn page_has_the_name_of_a_key_first_everywhere() {
    if !servers::available("chromium") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Gateway::start(&CONFIG.replace("keys = \"plain\"\n", ""));
    let mut browser = open(&gateway, &folder);
    for key in ["one", "two", "three"] {
        let status = || {
            gateway
                .request("GET", "/keys", &[("x-api-key", key)])
                .status
        };
        assert_eq!([status(), status()], [200, 429]);
    }
    browser.until("document.querySelectorAll('#refused-keys tbody tr').length === 3");
    let listed = gateway.admin_get("/api/v1/limits/per_key/keys").json();
    let names: Vec<&str> = (0..3)
        .map(|place| listed["keys"][place]["name"].as_str().expect("a name"))
        .collect();
    let labels = browser
        .value("[...document.querySelectorAll('#refused-keys button')].map(it => it.ariaLabel)");
    for name in &names {
        let label = format!("Change {name} under per_key");
        assert!(
            labels.as_array().expect("labels").contains(&json!(label)),
            "{labels}"
        );
    }
    browser.until("document.querySelectorAll('#events li').length >= 3");
    let first =
        "[...document.querySelectorAll('#refused-keys tbody th')].map(cell => cell.innerText)";
    browser.picture("light", 390, 1200);
    for cell in browser.value(first).as_array().expect("cells") {
        let cell = cell.as_str().expect("text");
        assert!(names.iter().any(|name| cell.starts_with(name)), "{cell}");
        assert!(
            cell.contains("per_key"),
            "on a phone the limit is with it: {cell}"
        );
    }
    let lately = text(&mut browser, "#events");
    assert!(
        names
            .iter()
            .all(|name| lately.contains(&format!("{name} (a key) under per_key"))),
        "{lately}"
    );

    // A block is told apart from a key that is merely out, and the change stands in the list.
    browser.picture("light", 1280, 1200);
    browser.click("#refused-keys tbody tr button");
    let chosen = browser.value("identity.value");
    browser.click("input[value=block]");
    browser.write("reason", "ticket 4711");
    browser.write("token", "test");
    browser.click("button[name=do]");
    browser.until("document.querySelector('#changed').innerText.startsWith('Changed')");
    browser.until("[...document.querySelectorAll('#refused-keys td.until')].filter(it => it.innerText.includes('blocked by an operator')).length === 1");
    let chosen = chosen.as_str().expect("a name");
    browser.until(&format!("document.querySelector('#audit').innerText.includes('ann blocked {chosen} (a key) under per_key')"));
    browser.until(&format!("document.querySelector('#overrides').innerText.startsWith('{chosen} (a key) under per_key')"));

    browser.write("search", names[1]);
    browser.until("document.querySelectorAll('#refused-keys tbody tr').length === 1");
    let shown = text(&mut browser, "#refused-keys tbody");
    assert!(shown.contains(names[1]), "{shown}");
    assert_undisturbed(&gateway, &mut browser);
}

#[test]
fn page_at_1280_pixels_has_every_column_and_begins_with_exact() {
    if !servers::available("chromium") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Gateway::start(CONFIG);
    let mut browser = open(&gateway, &folder);
    while gateway.get("/a").status == 200 {}
    browser.until("document.querySelector('#refused-keys tbody tr')");
    browser.picture("light", 1280, 1200);
    let cut = browser.value("[...document.querySelectorAll('.scroll')].filter(it => it.scrollWidth > it.clientWidth).map(it => it.innerText)");
    assert_eq!(cut, json!([]), "no table is cut");
    assert_eq!(
        browser.value("document.querySelector('main > section').id"),
        "exact"
    );
    // Whom the limit in shadow mode would refuse.
    browser.until("document.querySelector('#shadow-keys tbody')?.innerText.includes('everyone')");
    let shadow = text(&mut browser, "#shadow-keys");
    assert!(shadow.contains("quiet"), "{shadow}");
    let shown = gateway.admin_get("/api/v1/limits/quiet/keys?shadow").json();
    assert_eq!(shown["found"], 1, "{shown}");
    assert_eq!(
        gateway.admin_get("/api/v1/limits/quiet/keys").json()["found"],
        0
    );
    assert_undisturbed(&gateway, &mut browser);
}
