//! A disk that flushes slower than this machine's.
//!
//! What waits for the disk with a row locked is as fast as the disk, and machines differ: 70 us here, some 800 us on many a
//! server. The server's own `commit_delay` is no such disk: it also flushes transactions that commit while it waits.

use std::process::{Command, exit};

/// What the loader puts before the library's own.
const SLOW: &str = "
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, \"fdatasync\");
    usleep(SLOWER);
    return real(file);
}
";

/// Runs this program anew, with the same words, where each `fdatasync` of it and of the servers it starts takes so many
/// microseconds longer. Returns where that is so already.
///
/// # Panics
/// Without a C compiler.
pub fn slower_by(microseconds: u32) {
    if std::env::var_os("LD_PRELOAD").is_some() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // The server's user reads it too.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("a folder of ours");
    let (source, library) = (folder.path().join("slow.c"), folder.path().join("slow.so"));
    std::fs::write(&source, SLOW).expect("a file");
    let mut compile = Command::new("cc");
    compile
        .args(["-shared", "-fPIC", "-O1"])
        .arg(format!("-DSLOWER={microseconds}"))
        .arg("-o")
        .arg(&library)
        .arg(&source);
    assert!(
        compile
            .arg("-ldl")
            .status()
            .expect("a C compiler")
            .success(),
        "it compiles"
    );
    let program = std::env::current_exe().expect("this program");
    let run = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env("LD_PRELOAD", &library)
        .status();
    drop(folder);
    exit(run.expect("this program runs").code().unwrap_or(1));
}
