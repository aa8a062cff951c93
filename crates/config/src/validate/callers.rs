//! Known callers: a table in the file, or a separate file that is reloaded when it changes.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::{entries_of, names_of};
use crate::context::Context;
use crate::include::cannot_read;
use crate::lists::{Named, ShortOr};
use crate::problem::{Problem, suggestion};
use crate::raw::{RawCaller, RawFile};
use crate::reader::{Node, Read};
use crate::source::{At, Place};
use crate::text::Text;
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
            let own = with_own_numbers(raw).map(|(name, _)| name.as_str());
            compile(named, &tiers, &own.collect(), context).map(|callers| (callers, None))
        }
        ShortOr::Short(text) => {
            let what = "callers are read from here";
            let path = context.readable(&field.with(text.clone()), what)?;
            if context.sealed {
                return Some((Callers::default(), Some(path)));
            }
            let callers = read(&path, Some(field.place), &tiers, context)?;
            Some((callers, Some(path)))
        }
    }
}

/// Reads a file of callers: a table like `[identities.NAME.callers]`, without a header.
/// `named`: where the configuration names the file, if it is read too.
pub(crate) fn read(
    path: &Path,
    named: Option<Place>,
    tiers: &[&str],
    context: &mut Context<'_>,
) -> Option<Callers> {
    let refuse = |title: String, context: &mut Context<'_>| {
        let problem = context.problems.push(Problem::error(title));
        if let Some(place) = named {
            problem.at(place, "callers are read from here");
        }
    };
    let longer = "a file of callers has at most 128 MiB";
    let content = match crate::read_text_up_to(path, FILE_MAX, longer) {
        Ok(content) => content,
        Err(error) => {
            refuse(cannot_read(path, &error), context);
            return None;
        }
    };
    let (table, errors) = DeTable::parse_recoverable(&content);
    let file = context.sources.add(
        path.display().to_string(),
        content.as_str(),
        &crate::folder(path),
    );
    if let Some(error) = errors.first() {
        let place = Place::new(file, error.span().unwrap_or(0..0));
        context.error("this is not TOML", place, error.message());
        return None;
    }
    let table = table.into_inner();
    if table.len() > CALLERS_MAX {
        let title = format!(
            "`{}` has {} callers, and a file of callers has at most {CALLERS_MAX}",
            path.display(),
            table.len()
        );
        refuse(title, context);
        return None;
    }
    let node = Node {
        value: &DeValue::Table(table),
        place: Place::new(file, 0..0),
    };
    let keys = std::mem::take(&mut context.keys);
    // Nothing refers to a caller by its dotted name, and the names of many would take most of the time.
    let places = context.places.take();
    let named = Named::<RawCaller>::read(node, context);
    (context.keys, context.places) = (keys, places);
    let named = named?;
    for (_, caller) in &named.entries {
        if let Some(place) = caller.limits.place() {
            let title = "a file of callers gives tiers, not numbers";
            context.error(title, place, "write this in the main file").help(
                "give the caller a tier of its own: tier = \"acme\", with [tiers.acme] in the main file",
            );
        }
    }
    compile(&named, tiers, &HashSet::new(), context)
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
    own: &HashSet<&str>,
    context: &mut Context<'_>,
) -> Option<Callers> {
    let by_name: HashMap<&str, Arc<str>> =
        tiers.iter().map(|tier| (*tier, Arc::from(*tier))).collect();
    let mut entries: Vec<([u8; 32], Caller)> = Vec::with_capacity(named.entries.len());
    let mut places: HashMap<[u8; 32], Place> = HashMap::with_capacity(named.entries.len());
    let mut whole = named.broken.is_empty();
    for (key, caller) in &named.entries {
        let digest = match parse_digest(&key.value) {
            Ok(digest) => Some(digest),
            Err(error) if key.value.starts_with("sha256:") => {
                context.error("this is no SHA-256", key.place, error.message);
                None
            }
            Err(_) => {
                // It may be the secret itself.
                let title = "a caller's key is written in clear in the file";
                let label = "callers are listed by the SHA-256 of their key";
                let help = digest_words(key.value.as_bytes());
                let problem = context.error(title, key.place, label);
                problem.help(format!("if this is the key itself, write \"{help}\""));
                problem.secret = true;
                None
            }
        };
        let written = caller.tier.get();
        let tier = written.and_then(|tier| by_name.get(tier.as_str()));
        if let (Some(tier), None) = (written, tier) {
            let name = tier.as_str();
            let label = suggestion("tier", name, tiers);
            context.error(format!("unknown tier `{name}`"), tier.place, label).help(format!(
                "a tier without numbers of its own is one line: tiers.{name} = {{}}, before the first table"
            ));
            whole = false;
        }
        let (Some(digest), Some(name)) = (digest, caller.name.get()) else {
            whole = false;
            continue;
        };
        let first = *places.entry(digest).or_insert(key.place);
        if first != key.place {
            context.twice("one key for two callers", key.place, first);
            whole = false;
            continue;
        }
        let name = name.as_str();
        let caller = Caller {
            name: Arc::from(name),
            tier: tier.cloned(),
            numbers: own.contains(&name).then(|| own_numbers(name).into()),
        };
        entries.push((digest, caller));
    }
    Callers::new(entries).ok().filter(|_| whole)
}

/// The most keys in a file of callers, which take some 150 bytes each.
const CALLERS_MAX: usize = 500_000;
/// The most bytes of such a file: more than twice what that many lines take.
const FILE_MAX: u64 = 128 << 20;
