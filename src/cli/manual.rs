//! Shell completions and manual pages, generated from the description of the command line.

use std::fs;
use std::process::ExitCode;

use clap::CommandFactory;

use super::args::{Cli, Completions, Man};
use super::stop::Ended;
use super::{GOOD, print_out};

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
