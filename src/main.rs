//! The `tollgate` binary: arguments in, exit code out.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate::cli::main()
}
