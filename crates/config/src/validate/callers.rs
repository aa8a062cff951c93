//! Known callers: a table in the file, or a separate file that is reloaded when it changes.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::{entries_of, names_of};
use crate::files::{cannot_read, folder, read_text_up_to};
use crate::raw::{RawCaller, RawFile};
use crate::reading::{At, Context, Named, Node, Place, Problem, Read, ShortOr, Text, suggestion};
use tollgate_policy::identity::callers::digest_words;
use tollgate_policy::identity::{Callers, parse_digest};

/// The name of a caller, and the caller, which has limits of its own.
pub(crate) type OwnNumbers = (At<Text>, At<RawCaller>);

/// `callers` of an identity: the callers, and their file if they have one. `own` gets those of the
/// file that have limits of their own.
pub(crate) fn callers(
    field: &At<ShortOr<Text, Named<RawCaller>>>,
    raw: &RawFile,
    own: &mut Vec<OwnNumbers>,
    context: &mut Context<'_>,
) -> Option<(Callers, Option<PathBuf>)> {
    let tiers = names_of(&raw.tiers);
    match &field.value {
        ShortOr::Table(named) => {
            let own: Vec<OwnNumbers> = of_main_file(raw).collect();
            compile(named, &tiers, &own, context).map(|callers| (callers, None))
        }
        ShortOr::Short(text) => {
            let what = "callers are read from here";
            let path = context.readable(&field.with(text.clone()), what)?;
            if context.sealed {
                return Some((Callers::default(), Some(path)));
            }
            let (callers, own_of_file) = read(&path, Some(field.place), &tiers, context)?;
            own.extend(own_of_file);
            Some((callers, Some(path)))
        }
    }
}

/// Reads a file of callers: a table like `[identities.NAME.callers]`, without a header. Returns also
/// those that have limits of their own. `named`: where the configuration names the file, if it is
/// read too.
pub(crate) fn read(
    path: &Path,
    named: Option<Place>,
    tiers: &[&str],
    context: &mut Context<'_>,
) -> Option<(Callers, Vec<OwnNumbers>)> {
    let refuse = |title: String, context: &mut Context<'_>| {
        let problem = context.problems.push(Problem::error(title));
        if let Some(place) = named {
            problem.at(place, "callers are read from here");
        }
    };
    let longer = "a file of callers has at most 128 MiB";
    let content = match read_text_up_to(path, FILE_MAX, longer) {
        Ok(content) => content,
        Err(error) => {
            refuse(cannot_read(path, &error), context);
            return None;
        }
    };
    if let Some(callers) = quick(&content, tiers) {
        return Some((callers, Vec::new()));
    }
    let (table, errors) = DeTable::parse_recoverable(&content);
    let file = context
        .sources
        .add(path.display().to_string(), content.as_str(), &folder(path));
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
    let own: Vec<OwnNumbers> = with_own_numbers(&named).collect();
    if let Some((_, caller)) = own.get(OWN_MAX) {
        let title = format!("more than {OWN_MAX} callers of a file have limits of their own");
        context
            .error(title, caller.place, "one too many")
            .help("give callers with the same limits a tier");
        return None;
    }
    let callers = compile(&named, tiers, &own, context)?;
    Some((callers, own))
}

/// Reads a list whose lines are all as `tollgate hash` prints them, with a name and a tier or none.
/// `None`: one of them is not, or is wrong, and the list is read as TOML. A long list takes a tenth of
/// the time and of the memory so: TOML's reader makes a table of each line.
fn quick(content: &str, tiers: &[&str]) -> Option<Callers> {
    let by_name: HashMap<&str, usize> = tiers.iter().copied().zip(0..).collect();
    let mut callers = Callers::of_tiers(tiers.iter().copied());
    for line in content.lines().map(|line| line.trim_matches([' ', '\t'])) {
        if line.is_empty() || line.starts_with('#') && !line.contains(char::is_control) {
            continue;
        }
        let (key, rest) = quoted(line)?;
        let (name, rest) = quoted(rest.strip_prefix(" = { name = ")?)?;
        let (tier, rest) = match rest.strip_prefix(", tier = ") {
            Some(rest) => quoted(rest).map(|(tier, rest)| (Some(tier), rest))?,
            None => (None, rest),
        };
        let tier = match tier {
            Some(tier) => Some(*by_name.get(tier)?),
            None => None,
        };
        if rest != " }" || callers.len() >= CALLERS_MAX {
            return None;
        }
        callers.push(parse_digest(key).ok()?, name, tier, false);
    }
    callers.sorted()
}

/// The content of a string without escapes and variables, which is not empty, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let (inside, rest) = text.strip_prefix('"')?.split_once('"')?;
    let is_plain = |letter: char| !letter.is_control() && !matches!(letter, '\\' | '$');
    (!inside.is_empty() && inside.chars().all(is_plain)).then_some((inside, rest))
}

/// The callers in tables of the main file that have limits of their own.
pub(crate) fn of_main_file(raw: &RawFile) -> impl Iterator<Item = OwnNumbers> {
    let lists = entries_of(&raw.identities)
        .iter()
        .filter_map(|(_, identity)| match &identity.callers.get()?.value {
            ShortOr::Table(named) => Some(named),
            ShortOr::Short(_) => None,
        });
    lists.flat_map(with_own_numbers)
}

fn with_own_numbers(named: &Named<RawCaller>) -> impl Iterator<Item = OwnNumbers> {
    let own = named.entries.iter();
    own.filter(|(_, caller)| !caller.limits.is_absent())
        .filter_map(|(_, caller)| Some((caller.name.get()?.clone(), caller.clone())))
}

/// `own`: the callers with limits of their own.
fn compile(
    named: &Named<RawCaller>,
    tiers: &[&str],
    own: &[OwnNumbers],
    context: &mut Context<'_>,
) -> Option<Callers> {
    let own: HashSet<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
    let by_name: HashMap<&str, usize> = tiers.iter().copied().zip(0..).collect();
    let mut callers = Callers::of_tiers(tiers.iter().copied());
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
        if name.as_str().is_empty() {
            context.error("a caller has a name", name.place, "it is empty");
            whole = false;
        }
        let first = *places.entry(digest).or_insert(key.place);
        if first != key.place {
            context.twice("one key for two callers", key.place, first);
            whole = false;
            continue;
        }
        let name = name.as_str();
        callers.push(digest, name, tier.copied(), own.contains(name));
    }
    callers.sorted().filter(|_| whole)
}

/// The most keys in a file of callers, which take some 50 bytes each.
const CALLERS_MAX: usize = 500_000;
/// The most callers of such a file with limits of their own: each has a set of numbers for every
/// limit that it names.
const OWN_MAX: usize = 10_000;
/// The most bytes of such a file: more than twice what that many lines take.
const FILE_MAX: u64 = 128 << 20;
