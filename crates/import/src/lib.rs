//! Translates the rate limits of other gateways into `gateway.toml`, and says for each of them what differs.
//!
//! A peer's module reads its files into a [`draft::Draft`]: limits, routes, and one [`Finding`] for every setting that
//! concerns limiting. The draft is written as TOML and read by `tollgate-config`; text that does not pass is never
//! returned. This crate opens no socket and writes no file; the caller reads files for it.

#![forbid(unsafe_code)]

mod compare;
mod detect;
mod draft;
mod envoy;
mod finding;
mod ingress;
mod kong;
mod nginx;
mod report;
mod traefik;
mod tree;
mod words;
mod write;

use std::path::Path;

pub use detect::detect;
use draft::Draft;
pub use finding::{Difference, Favour, Finding, Outcome, Place};

/// The most bytes of all files together.
pub const TEXT_MAX: usize = 16 << 20;

/// A gateway whose files can be read. The comments are the help of `tollgate import --from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Peer {
    /// nginx.conf: limit_req, limit_conn
    Nginx,
    /// Kubernetes Ingress with annotations of ingress-nginx
    #[cfg_attr(feature = "clap", value(alias = "ingress-nginx"))]
    Ingress,
    /// Traefik's dynamic configuration or custom resources
    Traefik,
    /// kong.yml: the rate-limiting plugin
    Kong,
    /// The configuration of envoyproxy/ratelimit
    Envoy,
}

impl Peer {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "NGINX",
            Self::Ingress => "ingress-nginx",
            Self::Traefik => "Traefik",
            Self::Kong => "Kong",
            Self::Envoy => "Envoy's rate limit service",
        }
    }
}

/// A file's name, as messages call it, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    pub name: String,
    pub text: String,
}

impl SourceFile {
    pub(crate) fn place(&self, line: usize) -> Place {
        let file = self.name.clone();
        Place { file, line }
    }

    /// The directory of the file, from which it names others.
    pub(crate) fn folder(&self) -> &Path {
        Path::new(&self.name).parent().unwrap_or(Path::new(""))
    }
}

/// Reads the files that a pattern with `*` names, for `include` directives. A pattern without matches
/// is an empty list; a file that is missing is an error.
pub type Read<'a> = &'a dyn Fn(&Path) -> Result<Vec<SourceFile>, String>;

#[derive(Clone, Debug)]
pub struct Imported {
    pub peer: Peer,
    /// A configuration that `tollgate check` accepts.
    pub toml: String,
    /// What became of each setting that concerns limiting, in the order of the files.
    pub findings: Vec<Finding>,
    /// What is not said of a single limit: statuses, addresses, routes.
    pub notes: Vec<String>,
}

impl Imported {
    /// Whether everything that concerns limiting was imported.
    pub fn is_whole(&self) -> bool {
        !self
            .findings
            .iter()
            .any(|finding| matches!(finding.outcome, Outcome::NotImported(_)))
    }

    pub fn report(&self) -> String {
        report::text(self)
    }

    pub fn document(&self) -> serde_json::Value {
        report::document(self)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    #[error("{0}")]
    Unknown(String),
    #[error("{place}: {what}")]
    Broken { place: Place, what: String },
    #[error("{0}")]
    TooMuch(String),
    /// What was made does not pass the check: a defect of this crate, and nothing is handed out.
    #[error(
        "the translation does not pass `tollgate check`, so it is not written; please report this:\n{0}"
    )]
    Unsound(String),
}

impl ImportError {
    pub(crate) fn broken(place: Place, what: impl Into<String>) -> Self {
        let what = words::plain(&what.into(), 300);
        Self::Broken { place, what }
    }
}

/// Translates `sources`, all of one gateway.
pub fn import(sources: &[SourceFile], peer: Peer, read: Read<'_>) -> Result<Imported, ImportError> {
    let bytes: usize = sources.iter().map(|source| source.text.len()).sum();
    if bytes > TEXT_MAX {
        return Err(ImportError::TooMuch(format!(
            "the files have {bytes} bytes; at most {TEXT_MAX} are read"
        )));
    }
    let mut draft = Draft::default();
    match peer {
        Peer::Nginx => nginx::draft(sources, read, &mut draft)?,
        Peer::Ingress => ingress::draft(&tree::documents(sources)?, &mut draft),
        Peer::Traefik => traefik::draft(&traefik::documents(sources)?, &mut draft),
        Peer::Kong => kong::draft(&tree::documents(sources)?, &mut draft),
        Peer::Envoy => envoy::draft(sources, &mut draft)?,
    }
    draft.settle();
    let toml = write::checked(&mut draft, peer, sources)?;
    draft.sort(sources);
    draft.note(
        "only limits and the routes they need are imported: authentication, access lists, TLS, caching and rewriting \
         are not",
    );
    Ok(Imported {
        peer,
        toml,
        findings: draft.findings,
        notes: draft.notes,
    })
}

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
