//! `tollgate import`: translates the limits of another gateway's configuration.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tollgate_import::{Peer, SourceFile, detect, import as translate};

use super::args::{Format, Import};
use super::{BAD, GOOD, create_file, load, print_out};
use super::{Ended, Stop};

pub(super) fn import(args: &Import) -> Ended {
    let sources = args.files.iter().map(|path| source(path));
    let sources = sources.collect::<Result<Vec<_>, _>>()?;
    let peer = peer(args, &sources).map_err(Stop::Misuse)?;
    let made = translate(&sources, peer, &included).map_err(|error| error.to_string())?;
    if let Some(path) = &args.output {
        create_file(path, &made.toml)?;
        tell!("tollgate import: wrote {}", path.display());
    }
    let printed = match args.format {
        Format::Json => print_out(&format!("{:#}", made.document())),
        Format::Human => {
            tell!("{}", made.report().trim_end());
            match args.output {
                Some(_) => GOOD,
                None => print_out(&made.toml),
            }
        }
    };
    if made.findings.is_empty() {
        return Err(Stop::Bad(format!(
            "no limit was found: the files hold none, or none in a form that is read as {}'s",
            made.peer.name()
        )));
    }
    Ok(if made.is_whole() { printed } else { BAD })
}

/// The gateway that the files configure: the one that `--from` names, or the one that a file is recognised as.
fn peer(args: &Import, sources: &[SourceFile]) -> Result<Peer, String> {
    if let Some(from) = args.from {
        return Ok(from);
    }
    let found = sources
        .iter()
        .find_map(|source| Some((source, detect(source)?)));
    let Some((source, peer)) = found else {
        let names: Vec<&str> = sources.iter().map(|source| source.name.as_str()).collect();
        return Err(format!(
            "`{}` looks like no configuration that is known; --from says whose it is (of HAProxy and of Caddy none is imported: \
             the book has a page of counterparts for each)",
            names.join("`, `")
        ));
    };
    tell!("tollgate import: {} is of {}", source.name, peer.name());
    Ok(peer)
}

fn source(path: &Path) -> Result<SourceFile, String> {
    let name = path.display().to_string();
    let text = if path.as_os_str() == "-" {
        load::standard_input()
    } else {
        regular(path)
    };
    match text {
        Ok(text) => Ok(SourceFile { name, text }),
        Err(error) => Err(format!("cannot read `{name}`: {error}")),
    }
}

/// A file's text. What is no regular file could block or never end.
fn regular(path: &Path) -> std::io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::new(
            ErrorKind::InvalidInput,
            "it is no regular file",
        ));
    }
    tollgate_config::read_text(path)
}

fn included(pattern: &Path) -> Result<Vec<SourceFile>, String> {
    let is_pattern = pattern.to_string_lossy().contains('*');
    let paths: Vec<PathBuf> = match tollgate_config::matches(pattern) {
        Ok(paths) => paths,
        // A folder that is not there holds no file.
        Err(_) if is_pattern && pattern.parent().is_some_and(|folder| !folder.exists()) => {
            Vec::new()
        }
        Err(why) => return Err(why),
    };
    paths.iter().map(|path| source(path)).collect()
}
