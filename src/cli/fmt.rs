//! `tollgate fmt`: formats a configuration.

use std::process::ExitCode;

use super::args::Fmt;
use super::{BAD, GOOD};

pub(super) fn fmt(args: &Fmt) -> ExitCode {
    let name = args.file.display();
    let text = match tollgate_config::read_text(&args.file) {
        Ok(text) => text,
        Err(error) => {
            tell!("tollgate fmt: cannot read `{name}`: {error}");
            return BAD;
        }
    };
    let laid_out = match tollgate_replay::edit::formatted(&text) {
        Ok(laid_out) => laid_out,
        Err(what) => {
            tell!("tollgate fmt: `{name}`: {what}");
            return BAD;
        }
    };
    if laid_out == text {
        return GOOD;
    }
    if args.check {
        super::print_out(&format!("{name} is not laid out evenly"));
        return BAD;
    }
    match super::write_file(&args.file, &laid_out) {
        Ok(()) => GOOD,
        Err(error) => {
            tell!("tollgate fmt: cannot write `{name}`: {error}");
            BAD
        }
    }
}
