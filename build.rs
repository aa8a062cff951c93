//! Has the linker lay the functions that requests run side by side.
//!
//! Two workers that are woken for a few requests at a time find nothing of the program in the processor's caches and
//! translation buffers. The request path, strewn over the whole program, is 140 pages of code; side by side it is fewer, and
//! each is one look at the page tables less. `build/request-path.txt` names the functions (`benches/proxy/order` writes it);
//! a build that is trained (`benches/proxy/build-pgo`) has an order of its own.
//!
//! The linkers of LLVM and GNU read what this writes, mold does not: whoever names a linker, or links by flags of their own,
//! goes without, and so does whoever sets TOLLGATE_LAYOUT=0.

#![expect(clippy::disallowed_methods, reason = "Cargo talks to a build script by its environment")]

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

const NAMES: &str = "build/request-path.txt";

fn main() {
    println!("cargo:rerun-if-changed={NAMES}");
    println!("cargo:rerun-if-env-changed=TOLLGATE_LAYOUT");
    let is = |name: &str, value: &str| env::var(name).as_deref() == Ok(value);
    // Whoever says how to link may use a linker that reads no such script (mold does not).
    let linked_otherwise = env::var_os("RUSTC_LINKER").is_some()
        || env::var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|flags| flags.contains("link"));
    let wanted = is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") && !is("TOLLGATE_LAYOUT", "0");
    if !wanted || linked_otherwise {
        return;
    }
    let Ok(names) = fs::read_to_string(NAMES) else {
        println!("cargo:warning={NAMES} is not there: requests run a little slower where few come");
        return;
    };
    let mut script = String::from("SECTIONS {\n  .text.requests : {\n");
    for name in names.lines() {
        writeln!(script, "    *(.text.{name})").expect("text is written");
    }
    script.push_str("  }\n}\nINSERT BEFORE .text;\n");
    let path = Path::new(&env::var_os("OUT_DIR").expect("Cargo says where")).join("request-path.ld");
    fs::write(&path, script).expect("the build's own folder is written");
    println!("cargo:rustc-link-arg-bin=tollgate=-T{}", path.display());
}
