//! Shell completions and manual pages, generated from the description of the command line.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;

use super::args::{Cli, Completions, Man};
use super::{BAD, GOOD, print_out};

pub(super) fn completions(args: &Completions) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tollgate", &mut text);
    print_out(&String::from_utf8_lossy(&text))
}

pub(super) fn man(args: &Man) -> ExitCode {
    let command = Cli::command();
    let done = match &args.directory {
        None => {
            let mut page = Vec::new();
            let rendered = clap_mangen::Man::new(command).render(&mut page);
            return match rendered {
                Ok(()) => print_out(&String::from_utf8_lossy(&page)),
                Err(error) => bad(&error),
            };
        }
        Some(directory) => pages(command, directory),
    };
    done.map_or_else(|error| bad(&error), |()| GOOD)
}

/// A page for the program and one for each subcommand: `tollgate.1`, `tollgate-check.1`.
fn pages(command: clap::Command, directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command, directory)
}

fn bad(error: &std::io::Error) -> ExitCode {
    tell!("tollgate man: cannot write: {error}");
    BAD
}
