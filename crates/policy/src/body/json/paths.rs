//! The wanted members of a JSON text, and what was found at them.

use smallvec::SmallVec;

use super::calls::Calls;

/// The paths of wanted members, each by the names that lead to it, outermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    list: Vec<Vec<String>>,
}

/// Some of the paths, one bit for each.
pub type PathSet = u64;

/// The most paths of one reader: a [`PathSet`] has a bit for each.
pub const PATHS_MAX: usize = 64;

impl Paths {
    pub fn one(path: Vec<String>) -> Self {
        Self { list: vec![path] }
    }

    pub fn list(&self) -> &[Vec<String>] {
        &self.list
    }

    /// The names of each path, joined by dots.
    pub fn words(&self) -> Vec<String> {
        self.list.iter().map(|path| path.join(".")).collect()
    }

    /// The place of `path`, which is added if it is new; `None`: there are [`PATHS_MAX`] others.
    pub fn add(&mut self, path: &[String]) -> Option<usize> {
        if let Some(place) = self.place(path) {
            return Some(place);
        }
        if self.list.len() == PATHS_MAX {
            return None;
        }
        self.list.push(path.to_vec());
        Some(self.list.len() - 1)
    }

    pub fn place<Name>(&self, path: &[Name]) -> Option<usize>
    where
        String: PartialEq<Name>,
    {
        self.list.iter().position(|known| known.as_slice() == path)
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn all(&self) -> PathSet {
        (0..self.list.len()).fold(0, |set, place| set | bit(place))
    }

    /// The paths of `among` whose name at `level` is `name`; or only looks like it to a server that
    /// ignores case.
    pub(super) fn named(&self, among: PathSet, level: usize, name: &[u8]) -> (PathSet, bool) {
        let (mut same, mut alike) = (0, false);
        for place in places(among) {
            match self.list[place].get(level) {
                Some(wanted) if wanted.as_bytes() == name => same |= bit(place),
                Some(wanted) => alike |= folds_to(name, wanted),
                None => {}
            }
        }
        (same, alike)
    }

    /// The paths of `among` that end after `level` names.
    pub(super) fn ended(&self, among: PathSet, level: usize) -> PathSet {
        places(among)
            .filter(|place| self.list[*place].len() == level)
            .fold(0, |set, place| set | bit(place))
    }

    pub(super) fn longest_name(&self) -> usize {
        let names = self.list.iter().flatten();
        names.map(String::len).max().unwrap_or(0)
    }
}

pub(super) const fn bit(place: usize) -> PathSet {
    1 << place
}

pub(crate) fn places(mut set: PathSet) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(place)
    })
}

/// Whether a server that ignores the case of member names (Go's, ASP.NET's) reads `name` as
/// `wanted`. Go folds two letters beyond ASCII to ASCII ones, too.
fn folds_to(name: &[u8], wanted: &str) -> bool {
    if name.is_ascii() && wanted.is_ascii() {
        return name.eq_ignore_ascii_case(wanted.as_bytes());
    }
    let Ok(name) = std::str::from_utf8(name) else {
        return false;
    };
    let folded = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        _ => letter.to_ascii_lowercase(),
    };
    name.chars().map(folded).eq(wanted.chars().map(folded))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(SmallVec<[u8; 24]>),
    /// A number that is not negative and has no exponent.
    Number {
        /// Its value, rounded up; a number that is too large is the maximum.
        units: u64,
        /// Whether it is written as a whole number.
        whole: bool,
    },
    Flag(bool),
    /// Any other value: a list, an object, a number of another form.
    Odd,
}

/// A member that was asked for, over all calls of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its value, in the first call; `None`: absent, or `null`.
    pub value: Option<Value>,
    pub sum: u64,
    /// The number of calls in which it is a number.
    pub stated: u64,
    /// Whether it is something else than a number in some call.
    pub unreadable: bool,
    /// Whether it is `null` in some call, and so not absent.
    pub null: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// The elements of the outermost list; 1 if the text is no list.
    pub calls: u64,
    /// By the places of the paths.
    pub(crate) list: SmallVec<[Member; 2]>,
    /// The JSON-RPC calls, where they are asked for and get a response.
    pub(crate) calls_of_rpc: Option<Calls>,
}
