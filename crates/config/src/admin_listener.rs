//! Finds the admin listener that a file names, even if the file has mistakes elsewhere.

use std::path::{Path, PathBuf};

use super::ConfigError;
use super::files::read_text;
use super::include::{self, Tree};
use super::reading::{Context, Env, Field, Problems, Severity, Sources, Unset, defaults};
use super::settings::{Admin, Listener};

/// The admin listener of a file; `None` if it is off. A running gateway may still use an earlier
/// version of a file that has a mistake now, so only `[admin] listen` must be readable.
pub fn load_admin_listener(path: &Path, env: Env<'_>) -> Result<Option<Listener>, ConfigError> {
    let text = read_text(path).map_err(|error| ConfigError::unreadable(path, &error))?;
    parse_admin_listener(&text, &path.display().to_string(), env)
}

/// As [`load_admin_listener`], from a text. Messages call it `name`, and relative paths start in the
/// directory of `name`.
pub fn parse_admin_listener(
    text: &str,
    name: &str,
    env: Env<'_>,
) -> Result<Option<Listener>, ConfigError> {
    let mut context = Context::new(env, Problems::new(Unset::Refused));
    context.files.push(PathBuf::from(name));
    let tree = include::read(name, text.to_owned(), &mut context);
    let hidden = is_on_a_broken_line(&tree, &context.sources);
    let place = context.place("admin.listen");
    let mut problems = context.problems.into_sorted();
    problems.retain(|problem| problem.severity == Severity::Error);
    let mut marks = problems.iter().filter_map(|problem| problem.marks.first());
    let wrong = marks.any(|mark| place.is_some_and(|place| place.contains(mark.place)));
    match tree.raw.admin {
        Field::Here(admin) if !hidden && !wrong => Ok(admin.value.listen),
        Field::Absent if !hidden => Ok(defaults::<Admin>().listen),
        _ => Err(ConfigError {
            problems,
            sources: context.sources,
            files: context.files,
        }),
    }
}

/// Whether `[admin]` was written but lost, wholly or in part, because of lines that are not TOML.
fn is_on_a_broken_line(tree: &Tree, sources: &Sources) -> bool {
    if tree.broken_lines.is_empty() {
        return false;
    }
    let lost = tree.raw.admin.is_absent();
    (0..).zip(sources.texts()).any(|(file, text)| {
        let mut inside = false;
        text.lines().enumerate().any(|(number, line)| {
            let line = line.trim_start();
            if line.starts_with('[') {
                inside = line.starts_with("[admin");
            }
            let is_admins = inside || line.starts_with("admin");
            is_admins && (lost || tree.broken_lines.contains(&(file, number)))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str) -> Result<Option<String>, String> {
        let env = |name: &str| (name == "PORT").then(|| "9000".to_owned());
        parse_admin_listener(text, "/etc/gateway.toml", &env)
            .map(|listener| listener.map(|listener| listener.to_string()))
            .map_err(|error| error.lines().join("\n"))
    }

    #[test]
    fn admin_listener_is_found_although_the_file_has_mistakes() {
        let listener = Ok(Some("unix:/etc/a.sock".to_owned()));
        let admin = "[admin]\nlisten = \"unix:a.sock\"\n";
        for mistake in [
            "",
            "[limits.a]\nrate = \"many\"\n",
            "[limits.a\nrate = \"1/s\"\n",
            "[limits.a]\nrate = 1/s\n",
            "unknown = 1\n",
            "include = \"absent.toml\"\n",
            "[store]\nkind = \"redis\"\nurl = \"${UNSET}\"\n",
            "[server]\nlisten = \"nowhere\"\n",
        ] {
            assert_eq!(find(&format!("{mistake}{admin}")), listener, "{mistake}");
            if !mistake.starts_with(['i', 'u']) {
                assert_eq!(find(&format!("{admin}{mistake}")), listener, "{mistake}");
            }
        }
        let of = |text| find(text).map(Option::unwrap_or_default);
        assert_eq!(
            of("[admin]\nlisten = \"10.0.0.1:${PORT}\"\nport = 5\n"),
            Ok("http://10.0.0.1:9000".to_owned())
        );
        assert_eq!(of("[limits.a\n"), Ok("http://127.0.0.1:9180".to_owned()));
        assert_eq!(find("[admin]\nlisten = \"off\"\n[limits.a\n"), Ok(None));
    }

    #[test]
    fn admin_listener_that_cannot_be_read_is_an_error() {
        for (text, word) in [
            ("[admin]\nlisten = 127.0.0.1:9000\n", ":2:"),
            ("[admin\nlisten = \"127.0.0.1:9000\"\n", ":1:"),
            (
                "[limits]\na = \"\"\"\n[admin]\nlisten = \"127.0.0.1:9000\"\n",
                "TOML",
            ),
            ("admin = 5\n", "table"),
            ("[admin]\nlisten = 5\n", ":2:"),
            ("[admin]\nlisten = \"nowhere\"\n", "nowhere"),
            ("[admin]\nlisten = \"${UNSET}\"\n", "UNSET"),
        ] {
            let found = find(text);
            assert!(
                matches!(&found, Err(why) if why.contains(word)),
                "{text}: {found:?}"
            );
        }
    }
}
