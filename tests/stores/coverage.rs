//! The table of faults in `tests/STORES.md` names tests that there are.

#[test]
fn every_test_of_the_table_of_faults_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(root.join("tests/STORES.md")).unwrap();
    let (mut names, mut faults) = (0, 0);
    for row in table
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'))
    {
        faults += 1;
        // The first cell is prose. A file stands before its tests.
        for cell in row.split('|').skip(2) {
            let mut source = None;
            for word in cell.split('`').skip(1).step_by(2) {
                if word.ends_with(".rs") {
                    let path = if word.contains('/') {
                        root.join(word)
                    } else {
                        root.join("tests/stores").join(word)
                    };
                    source = Some(
                        std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("no {word}")),
                    );
                } else {
                    let source = source
                        .as_ref()
                        .unwrap_or_else(|| panic!("no file before `{word}`"));
                    // (A test of conformance is generic, and one of the suite is a line of its list.)
                    let is_there = [
                        format!("fn {word}()"),
                        format!("fn {word}<"),
                        format!("  {word}: "),
                    ]
                    .iter()
                    .any(|made| source.contains(made));
                    assert!(
                        is_there,
                        "tests/STORES.md names `{word}`, which is no test there"
                    );
                    names += 1;
                }
            }
        }
    }
    assert!(faults >= 20 && names > 35, "{faults} faults, {names} tests");
}
