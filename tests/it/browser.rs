//! A real browser for tests of pages: chromium, driven over the pipe of its DevTools protocol.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::PATIENCE;

/// One page in a browser of its own.
pub(crate) struct Browser {
    process: Child,
    stdin: ChildStdin,
    messages: Receiver<Value>,
    /// Messages that are no responses, oldest first.
    events: VecDeque<Value>,
    session: Option<String>,
    last: u64,
}

impl Browser {
    /// Starts one with an empty page. `folder` is its home.
    pub(crate) fn start(folder: &Path) -> Self {
        // The protocol is spoken on the descriptors 3 and 4. Chromium itself has no terminal.
        let script = "exec timeout 170 chromium \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>&1";
        let mut process = Command::new("sh")
            .args(["-c", script, "sh", "--remote-debugging-pipe", "--headless"])
            .args([
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-sync",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .arg(format!(
                "--user-data-dir={}",
                folder.join("profile").display()
            ))
            .env("HOME", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdin = process.stdin.take().expect("piped");
        let stdout = process.stdout.take().expect("piped");
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(stdout).split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).expect("a JSON message");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            process,
            stdin,
            messages,
            events: VecDeque::new(),
            session: None,
            last: 0,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = browser.call(
            "Target.attachToTarget",
            json!({ "targetId": target["targetId"], "flatten": true }),
        );
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method of the protocol.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut call = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = &self.session {
            call["sessionId"] = session.as_str().into();
        }
        self.stdin
            .write_all(format!("{call}\0").as_bytes())
            .expect("sent");
        loop {
            let message = self.messages.recv_timeout(3 * PATIENCE);
            let message = message.unwrap_or_else(|_| panic!("no response to {method}"));
            if message["id"] != self.last {
                self.events.push_back(message);
            } else if message["error"].is_null() {
                return message["result"].clone();
            } else {
                panic!("{method}: {}", message["error"]);
            }
        }
    }

    /// The value of an expression, or of its promise.
    #[track_caller]
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let done = self.call("Runtime.evaluate", params);
        assert!(done["exceptionDetails"].is_null(), "{expression}: {done}");
        done["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn until(&mut self, expression: &str) {
        for _ in 0..LOOKS {
            if self.value(&format!("Boolean({expression})")) == true {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        let text = self.value("document.body.innerText");
        let text = text.as_str().unwrap_or_default();
        panic!("{expression}: {text} {:?}", self.complaints());
    }

    /// Writes into the field with this id as a person does.
    #[track_caller]
    pub(crate) fn write(&mut self, id: &str, text: &str) {
        self.value(&format!(
            "document.getElementById('{id}').focus(), document.getElementById('{id}').select()"
        ));
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Clicks the middle of an element.
    #[track_caller]
    pub(crate) fn click(&mut self, selector: &str) {
        let place = self.value(&format!(
            "(() => {{ const it = document.querySelector({}); it.scrollIntoView({{ block: 'center' }}); const box = it.getBoundingClientRect();
               return {{ x: box.x + box.width / 2, y: box.y + box.height / 2 }}; }})()",
            json!(selector)
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let params = json!({ "type": kind, "x": place["x"], "y": place["y"], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", params);
        }
    }

    /// A picture of the page in one colour scheme.
    pub(crate) fn picture(&mut self, scheme: &str, width: u32, height: u32) -> Vec<u8> {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", features);
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let text = picture["data"].as_str().expect("a picture");
        base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).expect("Base64")
    }

    /// The addresses that the page asked for so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        let sent = |event: &&Value| event["method"] == "Network.requestWillBeSent";
        let url = |event: &Value| {
            event["params"]["request"]["url"]
                .as_str()
                .map(str::to_owned)
        };
        self.events.iter().filter(sent).filter_map(url).collect()
    }

    /// Exceptions and what the browser logged, such as violations of the page's policy.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let complains = |event: &&Value| {
            let method = event["method"].as_str().unwrap_or_default();
            [
                "Runtime.exceptionThrown",
                "Runtime.consoleAPICalled",
                "Log.entryAdded",
            ]
            .contains(&method)
        };
        self.events
            .iter()
            .filter(complains)
            .map(Value::to_string)
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends with its pipe; `timeout` ends it otherwise.
        let _ = self
            .stdin
            .write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let _ = self.process.wait();
    }
}

/// How often a page is looked at until it shows what is waited for: for some forty seconds.
const LOOKS: usize = 800;
