//! `tollgate init`: writes a commented file to start from. It never overwrites one.

use super::args::{Init, Setup};
use super::stop::Ended;
use super::{GOOD, print_out};

pub(super) fn init(args: &Init) -> Ended {
    let text = template(args.setup);
    if args.file.as_os_str() == "-" {
        return Ok(print_out(text));
    }
    super::create_file(&args.file, text)?;
    let name = args.file.display();
    tell!("tollgate init: wrote {name}");
    tell!("next: tollgate check {name}, then: tollgate {name}");
    Ok(GOOD)
}

fn template(setup: Setup) -> &'static str {
    match setup {
        Setup::Sidecar => include_str!("init/sidecar.toml"),
        Setup::Edge => include_str!("init/edge.toml"),
        Setup::Egress => include_str!("init/egress.toml"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use tollgate_limit::Timestamp;

    #[test]
    fn init_every_file_is_right_and_warns_of_nothing() {
        for setup in Setup::value_variants() {
            let read = tollgate_config::parse(
                template(*setup),
                "gateway.toml",
                &|_| None,
                Timestamp::default(),
            );
            let config = read.unwrap_or_else(|error| panic!("{setup:?}: {error}"));
            assert!(
                config.warnings.is_empty(),
                "{setup:?}: {:?}",
                config.warnings
            );
            assert!(!config.tests.is_empty(), "{setup:?} has a test");
        }
    }
}
