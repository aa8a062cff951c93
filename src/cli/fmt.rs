//! `tollgate fmt`: formats a configuration.

use super::args::Fmt;
use super::stop::Ended;
use super::{BAD, GOOD, print_out, replace_file};

pub(super) fn fmt(args: &Fmt) -> Ended {
    let name = args.file.display();
    let text = tollgate_config::read_text(&args.file)
        .map_err(|error| format!("cannot read `{name}`: {error}"))?;
    let laid_out =
        tollgate_replay::edit::formatted(&text).map_err(|what| format!("`{name}`: {what}"))?;
    if laid_out == text {
        return Ok(GOOD);
    }
    if args.check {
        print_out(&format!("{name} is not laid out evenly"));
        return Ok(BAD);
    }
    replace_file(&args.file, &laid_out)?;
    Ok(GOOD)
}
