use super::*;

fn fine() -> Facts {
    Facts {
        engine: Engine::Postgres,
        now: 2,
        isolation: "read committed".into(),
        read_only: false,
        standby: false,
        fsync: true,
        full_page_writes: true,
        table: true,
        functions: true,
        version: VERSION,
        columns: true,
        unlogged: true,
        lacks: Vec::new(),
    }
}

fn weights(facts: &Facts, synchronous: bool, long_quotas: bool) -> Vec<Weight> {
    facts
        .audit(3, synchronous, long_quotas)
        .into_iter()
        .map(|finding| finding.weight)
        .collect()
}

#[test]
fn the_version_is_that_of_the_schema() {
    assert!(super::super::schema_sql().contains(&format!("'SELECT {VERSION}::bigint'")));
}

#[test]
fn a_server_as_it_comes_is_fine_for_short_limits() {
    assert_eq!(fine().audit(3, false, false), []);
}

#[test]
fn audit_refuses_settings_that_cannot_work() {
    for broken in [
        Facts {
            standby: true,
            ..fine()
        },
        Facts {
            columns: false,
            ..fine()
        },
        Facts {
            functions: false,
            ..fine()
        },
        Facts {
            version: VERSION - 1,
            ..fine()
        },
        Facts {
            version: VERSION + 1,
            ..fine()
        },
        Facts {
            lacks: vec!["EXECUTE ON FUNCTION tollgate_draw".into()],
            version: 0,
            ..fine()
        },
        Facts {
            table: false,
            ..fine()
        },
        Facts {
            lacks: vec!["UPDATE ON tollgate_buckets".into()],
            ..fine()
        },
        Facts {
            fsync: false,
            unlogged: false,
            ..fine()
        },
    ] {
        assert!(
            weights(&broken, true, false).contains(&Weight::Refusal),
            "{broken:?}"
        );
    }
}

#[test]
fn audit_warns_of_losses_by_a_crash() {
    for (facts, synchronous, long) in [
        (fine(), true, true),
        (
            Facts {
                unlogged: false,
                ..fine()
            },
            false,
            true,
        ),
        (
            Facts {
                fsync: false,
                ..fine()
            },
            true,
            false,
        ),
        (
            Facts {
                unlogged: false,
                full_page_writes: false,
                ..fine()
            },
            true,
            false,
        ),
        (
            Facts {
                isolation: "serializable".into(),
                ..fine()
            },
            true,
            false,
        ),
        (
            Facts {
                read_only: true,
                ..fine()
            },
            true,
            false,
        ),
        (
            Facts {
                now: 60_000_000,
                ..fine()
            },
            true,
            false,
        ),
    ] {
        assert_eq!(
            weights(&facts, synchronous, long),
            [Weight::Warning],
            "{facts:?}"
        );
    }
    assert_eq!(
        weights(
            &Facts {
                unlogged: false,
                ..fine()
            },
            true,
            true
        ),
        [],
        "what is on disk is kept"
    );
}
