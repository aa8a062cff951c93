//! What the documents say is true: every configuration is accepted, every command is run and prints what is shown, every
//! link leads somewhere, and the pages made from the code are those that the code makes now.

mod architecture;
mod blocks;
mod book;
mod lists;
mod markdown;
mod reference;
mod session;

use std::path::Path;
use std::sync::Mutex;

use markdown::{Document, documents};
use session::Session;

pub(crate) const README: &str = "README.md";
pub(crate) const BOOK: &str = "docs/src";
pub(crate) const EXAMPLES: &str = "examples";

#[test]
fn documents_readme_commands_print_what_is_shown() {
    run_all(documents(&[README]));
}

#[test]
fn documents_book_commands_print_what_is_shown() {
    run_all(documents(&[BOOK]));
}

#[test]
fn documents_examples_admit_and_refuse_as_they_say() {
    let examples = documents(&[EXAMPLES]);
    for document in &examples {
        let runs = |block: &markdown::Block| block.language == "console";
        assert!(
            document.path.ends_with("examples/README.md") || document.blocks.iter().any(runs),
            "{} shows no request",
            document.path.display()
        );
    }
    run_all(examples);
}

/// The page says that its two configurations admit the same at once; this asks a real NGINX.
#[test]
fn documents_nginx_page_admits_what_nginx_admits() {
    if !tollgate_testkit::servers::available("/usr/sbin/nginx")
        && !tollgate_testkit::servers::available("nginx")
    {
        return;
    }
    let page = Document::read(Path::new("docs/src/do/from-nginx.md"));
    let block = page.blocks.iter().find(|block| block.language == "nginx");
    let limits = &block.expect("the page shows a configuration of NGINX").text;
    let text = format!(
        "<!-- file nginx.conf -->\n```nginx\npid nginx.pid;\nevents {{}}\nhttp {{\naccess_log off;\n{TEMPORARY}{limits}}}\n```\n\n\
         ```console\n$ env PORT=8082 PATH=\"$PATH:/usr/sbin\" nginx -p . -e stderr -c nginx.conf -g 'daemon off; master_process off;' &\n\
         $ for i in $(seq 7); do curl -s -o /dev/null -w '%{{http_code}} ' http://127.0.0.1:8082/; done; echo\n\
         200 200 200 200 200 200 429\n```\n"
    );
    Session::run(&Document::parse(Path::new("a real NGINX"), &text), None);
}

const TEMPORARY: &str = "client_body_temp_path one; proxy_temp_path two; fastcgi_temp_path three; uwsgi_temp_path four; scgi_temp_path five;\n";

/// Runs the commands of all pages, three pages at a time. `PAGE=part-of-a-path` runs some of them.
#[expect(clippy::disallowed_methods, reason = "a switch for authors of pages")]
fn run_all(mut pages: Vec<Document>) {
    if let Ok(some) = std::env::var("PAGE") {
        pages.retain(|page| page.path.to_string_lossy().contains(&some));
    }
    let pages = Mutex::new(pages);
    let next = || pages.lock().ok().and_then(|mut pages| pages.pop());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(page) = next() {
                    let files = page.path.parent().filter(|_| {
                        page.path.starts_with(EXAMPLES) && page.path.components().count() > 2
                    });
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        Session::run(&page, files);
                    }));
                    if outcome.is_err()
                        && let Ok(mut failures) = failures.lock()
                    {
                        failures.push(page.path.clone());
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_default();
    assert!(failures.is_empty(), "see above: {failures:?}");
}
