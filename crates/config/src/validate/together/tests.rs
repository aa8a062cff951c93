use crate::{Config, Loader, parse};
use tollgate_limit::Timestamp;

/// The file has one listener, and `--listen` another: the warnings are about the one in force.
#[test]
fn listener_in_place_of_the_files_is_the_one_that_is_warned_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gateway.toml");
    let loaded = |file: &str, option: &str| -> Config {
        let routes = "[limits.a]\nrate = \"9/minute\"\nper = \"address\"\n\
            [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\"]\n";
        let text = |listen: &str| format!("[server]\nlisten = \"{listen}\"\n{routes}");
        std::fs::write(&path, text(file)).expect("written");
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let given = parse(&text(option), "option", &|_| None, now).expect("legal");
        let listen = given.server.listen.first();
        Loader::new(&|_| None, now)
            .listen(listen)
            .file(&path)
            .expect("legal")
    };
    let open = loaded("127.0.0.1:8080", "0.0.0.0:8081");
    assert_eq!(open.warnings, Vec::<String>::new());
    assert_eq!(open.server.listen.len(), 1);
    let closed = loaded("0.0.0.0:8080", "127.0.0.1:8081").warnings;
    let [warning] = closed.as_slice() else {
        panic!("{closed:?}")
    };
    assert!(
        warning.contains("only this machine can connect") && warning.contains("`--listen`"),
        "{warning}"
    );
    assert!(!warning.contains("8080"), "{warning}");
    let both = loaded("127.0.0.1:8080", "127.0.0.1:8081").warnings.join("");
    assert!(
        both.contains("`--listen`") && !both.contains("8080"),
        "{both}"
    );
}
