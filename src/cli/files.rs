//! The verbs that read or write files and ask no gateway: `hash`, `fmt`, `init`, `completions`, `man`.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::process::ExitCode;

use clap::CommandFactory;

use super::args::{Cli, Completions, Fmt, Hash, Init, Man, Setup};
use super::{BAD, Ended, GOOD, create_file, print_out, replace_file};

/// Hashes an API key from standard input, for a list of callers. The key is never an argument, because
/// other processes can see arguments and shells store them.
pub(super) fn hash(args: &Hash) -> Ended {
    if io::stdin().is_terminal() {
        tell!("The API key, then Enter and Ctrl-D:");
    }
    let mut input = Vec::new();
    // Read one byte more than is accepted, to detect longer input.
    let read = io::stdin().take(KEY_MAX + 1).read_to_end(&mut input);
    read.map_err(|error| format!("cannot read standard input: {error}"))?;
    let key = key_of(&input).map_err(str::to_owned)?;
    let digest = tollgate_policy::identity::callers::digest_words(key);
    let Some(name) = &args.name else {
        return Ok(print_out(&digest));
    };
    // A JSON string is also a TOML string.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let tier = args.tier.as_deref();
    let tier = tier.map_or_else(String::new, |tier| format!(", tier = {}", quoted(tier)));
    Ok(print_out(&format!(
        "\"{digest}\" = {{ name = {}{tier} }}",
        quoted(name)
    )))
}

/// The key without its line end, which `echo` and editors add and requests do not contain.
fn key_of(input: &[u8]) -> Result<&[u8], &'static str> {
    let key = input.strip_suffix(b"\n").unwrap_or(input);
    let key = key.strip_suffix(b"\r").unwrap_or(key);
    if key.is_empty() {
        return Err("there is no key on standard input: printf %s \"$KEY\" | tollgate hash");
    }
    if input.len() as u64 > KEY_MAX {
        return Err("the key is longer than 64 KiB");
    }
    if key.contains(&b'\n') || key.contains(&b'\r') {
        return Err("more than one line on standard input: hash one key at a time");
    }
    if key.trim_ascii() != key {
        return Err("the key begins or ends with a space, which the value of a header never does");
    }
    Ok(key)
}

/// More than any header contains.
const KEY_MAX: u64 = 64 << 10;

pub(super) fn fmt(args: &Fmt) -> Ended {
    let name = args.file.display();
    let text = tollgate_config::read_text(&args.file)
        .map_err(|error| format!("cannot read `{name}`: {error}"))?;
    let laid_out =
        tollgate_replay::edit::formatted(&text).map_err(|what| format!("`{name}`: {what}"))?;
    if laid_out == text {
        return Ok(GOOD);
    }
    if args.check {
        print_out(&format!("{name} is not laid out evenly"));
        return Ok(BAD);
    }
    replace_file(&args.file, &laid_out)?;
    Ok(GOOD)
}

/// Writes a commented file to start from. It never overwrites one.
pub(super) fn init(args: &Init) -> Ended {
    let text = template(args.setup);
    if args.file.as_os_str() == "-" {
        return Ok(print_out(text));
    }
    create_file(&args.file, text)?;
    let name = args.file.display();
    tell!("tollgate init: wrote {name}");
    tell!("next: tollgate check {name}, then: tollgate {name}");
    Ok(GOOD)
}

fn template(setup: Setup) -> &'static str {
    match setup {
        Setup::Sidecar => include_str!("init/sidecar.toml"),
        Setup::Edge => include_str!("init/edge.toml"),
        Setup::Egress => include_str!("init/egress.toml"),
    }
}

pub(super) fn completions(args: &Completions) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tollgate", &mut text);
    print_out(&String::from_utf8_lossy(&text))
}

pub(super) fn man(args: &Man) -> Ended {
    let command = Cli::command();
    let cannot = |error: std::io::Error| format!("cannot write: {error}");
    let Some(directory) = &args.directory else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(command).render(&mut page);
        rendered.map_err(cannot)?;
        return Ok(print_out(&String::from_utf8_lossy(&page)));
    };
    // A page for the program and one for each subcommand: `tollgate.1`, `tollgate-check.1`.
    fs::create_dir_all(directory).map_err(cannot)?;
    clap_mangen::generate_to(command, directory).map_err(cannot)?;
    Ok(GOOD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use tollgate_limit::Timestamp;

    #[test]
    fn hash_end_of_line_is_no_part_of_the_key() {
        for input in ["test", "test\n", "test\r\n"] {
            let key = key_of(input.as_bytes()).expect("one key");
            assert_eq!(
                tollgate_policy::identity::callers::digest_words(key),
                "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
            );
        }
    }

    #[test]
    fn hash_key_that_no_request_can_send_is_refused() {
        for input in ["", "\n", "a\nb\n", " a", "a \n"] {
            assert!(key_of(input.as_bytes()).is_err(), "{input:?}");
        }
    }

    #[test]
    fn init_every_file_is_right_and_warns_of_nothing() {
        for setup in Setup::value_variants() {
            let read = tollgate_config::parse(
                template(*setup),
                "gateway.toml",
                &|_| None,
                Timestamp::default(),
            );
            let config = read.unwrap_or_else(|error| panic!("{setup:?}: {error}"));
            assert!(
                config.warnings.is_empty(),
                "{setup:?}: {:?}",
                config.warnings
            );
            assert!(!config.tests.is_empty(), "{setup:?} has a test");
        }
    }
}
