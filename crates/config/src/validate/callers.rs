//! Known callers: a table in the file, or a separate file that is reloaded when it changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::{Context, entries_of, names_of};
use crate::env::Env;
use crate::problem::{Problem, Problems, suggestion};
use crate::raw::{RawCaller, RawFile};
use crate::reader::{Node, Read, Reader};
use crate::scalar::{Named, ShortOr, Text};
use crate::source::{At, Place, Sources};
use tollgate_policy::callers::digest_words;
use tollgate_policy::identity::{Caller, Callers, parse_digest};

/// `callers` of an identity: the callers, and their file if they have one.
pub(crate) fn callers(
    field: &At<ShortOr<Text, Named<RawCaller>>>,
    raw: &RawFile,
    context: &mut Context<'_>,
) -> Option<(Callers, Option<PathBuf>)> {
    let tiers = names_of(&raw.tiers);
    match &field.value {
        ShortOr::Table(named) => {
            let own: Vec<&str> = with_own_numbers(raw)
                .map(|(name, _)| name.as_str())
                .collect();
            compile(named, &tiers, &own, context.problems).map(|callers| (callers, None))
        }
        ShortOr::Short(text) => {
            let text = field.with(text.clone());
            let content = context.content(&text, "callers are read from here")?;
            let path = context.path(&text);
            let callers = read(
                &path,
                content,
                &tiers,
                context.env,
                context.sources,
                context.problems,
            )?;
            Some((callers, Some(path)))
        }
    }
}

/// Reads a file of callers: a table like `[identities.NAME.callers]`, without a header.
pub(crate) fn read(
    path: &Path,
    content: String,
    tiers: &[&str],
    env: Env<'_>,
    sources: &mut Sources,
    problems: &mut Problems,
) -> Option<Callers> {
    let base = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    let file = sources.add(path.display().to_string(), content, &base);
    let text = sources.of(file).text.clone();
    let (table, errors) = DeTable::parse_recoverable(&text);
    if let Some(error) = errors.first() {
        let place = Place::new(file, error.span().unwrap_or(0..0));
        problems.push(Problem::error("this is not TOML").at(place, error.message()));
        return None;
    }
    let mut reader = Reader {
        file,
        text: &text,
        env,
        problems,
        path: Vec::new(),
    };
    let value = DeValue::Table(table.into_inner());
    let named = Named::<RawCaller>::read(
        Node {
            value: &value,
            place: Place::new(file, 0..0),
        },
        &mut reader,
    )?;
    for (_, caller) in &named.entries {
        if let Some(place) = caller.limits.place() {
            let problem = Problem::error("a file of callers gives tiers, not numbers")
                .at(place, "this belongs into the main file");
            problems.push(problem.help(
                "give the caller a tier of its own: tier = \"acme\", with [tiers.acme] in the main file",
            ));
        }
    }
    compile(&named, tiers, &[], problems)
}

/// The callers of the file that have limits of their own, by name.
pub(crate) fn with_own_numbers(raw: &RawFile) -> impl Iterator<Item = (&At<Text>, &At<RawCaller>)> {
    let listed = entries_of(&raw.identities)
        .iter()
        .filter_map(|(_, identity)| match &identity.callers.get()?.value {
            ShortOr::Table(named) => Some(named.entries.iter()),
            ShortOr::Short(_) => None,
        });
    listed
        .flatten()
        .filter(|(_, caller)| !caller.limits.is_absent())
        .filter_map(|(_, caller)| Some((caller.name.get()?, caller)))
}

/// The name of a caller's own numbers among the variants of a limit. No tier name contains a space.
pub(crate) fn own_numbers(caller: &str) -> String {
    format!("caller {caller}")
}

/// `own`: the names of callers with limits of their own.
fn compile(
    named: &Named<RawCaller>,
    tiers: &[&str],
    own: &[&str],
    problems: &mut Problems,
) -> Option<Callers> {
    let mut entries: Vec<(At<String>, [u8; 32], Caller)> = Vec::new();
    let mut whole = named.broken.is_empty();
    for (key, caller) in &named.entries {
        let digest = match parse_digest(&key.value) {
            Ok(digest) => Some(digest),
            Err(error) => {
                problems.push(not_a_digest(key, error.message));
                None
            }
        };
        if caller.name.is_absent() {
            let problem =
                Problem::error("a caller without a name").at(caller.place, "`name` is missing");
            problems.push(problem.help("{ name = \"acme\", tier = \"pro\" }"));
        }
        let tier = caller.tier.get();
        if let Some(tier) = tier
            && !tiers.contains(&tier.as_str())
        {
            let problem = Problem::error(format!("unknown tier `{}`", tier.as_str()));
            let problem = problem.at(tier.place, suggestion("tier", tier.as_str(), tiers));
            let help = format!(
                "a tier without numbers of its own is one line: tiers.{} = {{}}, before the first table",
                tier.as_str()
            );
            problems.push(problem.help(help));
            whole = false;
        }
        match (digest, caller.name.get()) {
            (Some(digest), Some(name)) => {
                if let Some((first, ..)) = entries.iter().find(|(_, other, _)| *other == digest) {
                    let problem =
                        Problem::error("one key for two callers").at(key.place, "again here");
                    problems.push(problem.at(first.place, "first here"));
                    whole = false;
                    continue;
                }
                let tier = tier.map(|tier| Arc::from(tier.as_str()));
                entries.push((
                    key.clone(),
                    digest,
                    Caller {
                        name: Arc::from(name.as_str()),
                        tier,
                        numbers: own
                            .contains(&name.as_str())
                            .then(|| own_numbers(name.as_str()).into()),
                    },
                ));
            }
            _ => whole = false,
        }
    }
    if !whole {
        return None;
    }
    Callers::new(
        entries
            .into_iter()
            .map(|(_, digest, caller)| (digest, caller)),
    )
    .ok()
}

/// A key that is not a digest may be the secret itself: report what to write instead.
fn not_a_digest(key: &At<String>, message: String) -> Problem {
    if key.value.starts_with("sha256:") {
        return Problem::error("this is no SHA-256").at(key.place, message);
    }
    let digest = digest_words(key.value.as_bytes());
    Problem::error("a caller's key stands in clear in the file")
        .secret()
        .at(key.place, "callers are listed by the SHA-256 of their key")
        .help(format!("if this is the key itself, write \"{digest}\""))
}
