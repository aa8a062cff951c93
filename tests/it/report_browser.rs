//! The report of a replay in a real browser: its figures are those of the JSON, and nothing of a hostile log takes effect.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::servers;

const LIMITS: &str = "[limits.one]\nrate = \"1/minute\"\nburst = 2\nper = \"address\"\n\
                      [limits.key]\nrate = \"1/minute\"\nburst = 3\nper = \"header:x-api-key\"\nwhen_missing = \"use:address\"\n\
                      [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\", \"key\"]\n";

/// Keys that a page would execute, load or be broken by.
const HOSTILE: [&str; 5] = [
    "<script>document.title='taken'</script>",
    "<img/src=http://evil.test/a/onerror=document.title='taken'>",
    "\"><svg/onload=document.title='taken'>",
    "'</table></body><iframe/src=http://evil.test/b>",
    "</title></style><style>@import'http://evil.test/c';*{display:none}</style>",
];

fn log() -> String {
    let mut log = String::new();
    for (place, hostile) in HOSTILE.iter().enumerate() {
        for second in 0..9 {
            let line = serde_json::json!({
                "ts": 1_431_857_103 + place * 60 + second,
                "request": { "remote_ip": hostile, "method": "GET", "host": "x", "uri": "/a", "headers": { "X-Api-Key": [hostile] } },
                "duration": 0.1,
                "status": 200,
            });
            log.push_str(&format!("{line}\n"));
        }
    }
    log
}

/// Runs the browser on a page in `folder`; what it prints and logs.
fn chromium(folder: &Path, arguments: &[&str]) -> (String, String) {
    let page = format!("file://{}", folder.join("report.html").display());
    let output = Command::new("timeout")
        .args([
            "90",
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ])
        .args([
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
            "--window-size=1000,2600",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.join("profile").display()
        ))
        .args(arguments)
        .arg(page)
        .env("HOME", folder)
        .output()
        .expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// A proxy that takes down the first bytes of every connection and responds to none.
fn proxy() -> (u16, Arc<Mutex<String>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let asked = Arc::new(Mutex::new(String::new()));
    let noted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 512];
            let count = stream.read(&mut head).unwrap_or(0);
            let mut noted = noted.lock().expect("no panic");
            noted.push_str(&String::from_utf8_lossy(&head[..count]));
        }
    });
    (port, asked)
}

/// The cells of the table with this id, row by row, as the browser has them.
fn table(dom: &str, id: &str) -> Vec<Vec<String>> {
    let start = dom
        .find(&format!("<table id=\"{id}\">"))
        .expect("the table");
    let table = &dom[start..start + dom[start..].find("</table>").expect("its end")];
    let cells = |row: &str| {
        let cell = |cell: &str| {
            let text = cell.split_once('>').map_or("", |(_, text)| text);
            text.split('<').next().unwrap_or_default().trim().to_owned()
        };
        row.replace("<th", "<td")
            .split("<td")
            .skip(1)
            .map(cell)
            .collect()
    };
    table.split("<tr").skip(1).map(cells).collect()
}

#[test]
fn report_in_a_browser_shows_the_figures_of_the_json_and_executes_nothing_of_the_log() {
    if !servers::available("chromium") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("gateway.toml"), LIMITS).expect("written");
    std::fs::write(folder.path().join("access.log"), log()).expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args([
            "replay",
            "access.log",
            "--format",
            "json",
            "--html",
            "report.html",
        ])
        .current_dir(folder.path())
        .env_remove("TOLLGATE_CONFIG")
        .output()
        .expect("it runs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["limits"][0]["keys_refused"], 5, "{report:#}");

    let (port, asked) = proxy();
    let by_proxy = format!("--proxy-server=127.0.0.1:{port}");
    let (dom, logged) = chromium(folder.path(), &[&by_proxy, "--dump-dom"]);
    assert!(
        dom.contains("<title>Tollgate replay</title>"),
        "{dom} {logged}"
    );
    assert!(!logged.contains("CONSOLE"), "{logged}");
    let elements = dom.matches("<script").count();
    assert_eq!(
        elements, 2,
        "the data and the script that draws them: {dom}"
    );
    for element in [
        "<img",
        "<iframe",
        "<object",
        "<link",
        "onload=\"",
        "onerror=\"",
    ] {
        assert!(!dom.contains(element), "{element}: {dom}");
    }
    let asked = asked.lock().expect("no panic").clone();
    assert!(!asked.contains("evil.test"), "{asked}");
    // The keys are there as text: the entities of `<` and `>` are no markup.
    assert!(
        dom.contains("&lt;script&gt;document.title='taken'&lt;/script&gt;"),
        "{dom}"
    );

    let rows = table(&dom, "limits");
    for (limit, row) in report["limits"]
        .as_array()
        .expect("limits")
        .iter()
        .zip(&rows[1..])
    {
        let number = |value: &Value| value.as_u64().expect("a number").to_string();
        let expected: Vec<String> = ["admitted", "refused", "keys", "keys_refused"]
            .iter()
            .map(|name| number(&limit[*name]))
            .chain(
                ["per_second", "per_minute"]
                    .iter()
                    .map(|name| number(&limit["peak"][*name])),
            )
            .collect();
        assert_eq!(row[0], limit["name"].as_str().expect("a name"));
        assert_eq!(row[1..], expected, "{row:?}");
    }
    assert_eq!(rows.len(), 3);
    let today = &table(&dom, "choices")[4];
    assert_eq!(today[..2], ["today", "1/minute"], "{today:?}");
    assert_eq!(
        today[3..5],
        ["5", "35"],
        "keys and requests that today's limit refuses: {today:?}"
    );

    // Both schemes draw the same page in other colours.
    let mut pictures = Vec::new();
    for scheme in [
        "--blink-settings=preferredColorScheme=1",
        "--blink-settings=preferredColorScheme=0",
    ] {
        let file = folder.path().join("picture.png");
        let (_, logged) = chromium(
            folder.path(),
            &[scheme, &format!("--screenshot={}", file.display())],
        );
        assert!(!logged.contains("CONSOLE"), "{logged}");
        let picture = std::fs::read(&file).expect("a picture");
        assert!(picture.starts_with(b"\x89PNG") && picture.len() > 20_000);
        pictures.push(picture);
        std::fs::remove_file(&file).expect("removed");
    }
    assert_ne!(pictures[0], pictures[1], "light and dark");
}
