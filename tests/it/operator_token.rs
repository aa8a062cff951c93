//! Where the commands of operators send a token.

use crate::harness::Gateway;
use crate::operator_words::program;

/// The operator's token is `test`.
const CONFIG: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n\
    operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n\
    [identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\n\
    [limits.search]\nrate = \"2/hour\"\nper = \"tenant\"\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\"]\n";

/// A token of the environment stays on this machine, and one that cannot be sent is named.
#[test]
fn operator_token_of_the_environment_is_sent_over_no_network() {
    let reset = "key reset tenant k --reason r --timeout 1 --admin";
    let reset: Vec<&str> = reset.split(' ').collect();
    // (Addresses like this are for documentation: no machine has one.)
    let far = [&reset[..], &["192.0.2.1:9180"]].concat();
    let (code, _, err) = program(&far, &[("TOLLGATE_TOKEN", "secret")]);
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.contains("nothing was sent: TOLLGATE_TOKEN is sent only"),
        "{err}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, "secret\n").expect("written");
    let named = [&far[..], &["--token-file", file.to_str().expect("UTF-8")]].concat();
    let (code, _, err) = program(&named, &[]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("192.0.2.1:9180: no response"), "{err}");

    let gateway = Gateway::start(CONFIG);
    let admin = gateway.admin().to_string();
    let (code, _, err) = program(&[&reset[..], &[&admin]].concat(), &[("TOLLGATE_TOKEN", "")]);
    assert_eq!(code, Some(2), "{err}");
    let (code, _, err) = program(
        &[&reset[..], &[&admin]].concat(),
        &[("TOLLGATE_TOKEN", "two words")],
    );
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("TOLLGATE_TOKEN: the token has characters"),
        "{err}"
    );
}
