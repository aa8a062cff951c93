//! The files of a configuration: how they are read, matched and refused.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The most bytes in one file of a configuration: far more than any has, and little enough to read
/// a device or the wrong file without harm.
pub const FILE_MAX: u64 = 16 << 20;

pub fn read_text(path: &Path) -> io::Result<String> {
    read_text_up_to(path, FILE_MAX, "a configuration has at most 16 MiB")
}

/// Reads a file of at most so many bytes; `longer` is the error of another one.
pub(crate) fn read_text_up_to(path: &Path, most: u64, longer: &str) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(most + 1).read_to_string(&mut text)?;
    if read as u64 > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, longer));
    }
    Ok(text)
}

/// The directory of a file, in which its relative paths start.
pub(crate) fn folder(path: &Path) -> PathBuf {
    path.parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// The files that an include matches, sorted; `*` is allowed in the last part.
pub fn matches(whole: &Path) -> Result<Vec<PathBuf>, String> {
    let last = whole
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
        .to_owned();
    let Some((head, tail)) = last.split_once('*') else {
        return Ok(vec![whole.to_path_buf()]);
    };
    if tail.contains('*')
        || whole
            .parent()
            .is_some_and(|parent| parent.to_string_lossy().contains('*'))
    {
        return Err(format!(
            "`{}` has more than one `*`, or one outside its last part",
            whole.display()
        ));
    }
    let directory = whole.parent().unwrap_or(whole);
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    let entries = fs::read_dir(directory).map_err(|error| {
        format!(
            "cannot read the directory `{}`: {}",
            directory.display(),
            plain(&error)
        )
    })?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.len() >= head.len() + tail.len()
                && name.starts_with(head)
                && name.ends_with(tail)
                && !name.starts_with('.')
        })
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    Ok(paths)
}

/// An I/O error without its code: "No such file or directory".
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

pub(crate) fn cannot_read(path: &Path, error: &io::Error) -> String {
    format!("cannot read `{}`: {}", path.display(), plain(error))
}
