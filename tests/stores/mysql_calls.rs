//! What MariaDB is asked for a decision: one call of a procedure.

use tollgate_limit::{Claim, Micros};
use tollgate_store::Store;

use crate::limits::bucket;
use crate::servers::Maria;
use crate::servers::{QUICK, StoreKind};

const HOUR: Micros = Micros::from_secs(3600);

#[tokio::test]
async fn mysql_one_and_several_limits_are_decided_in_one_call_each() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK, "log-output=TABLE"]);
    // (A refusal is the server's, too.)
    let store = StoreKind::Mysql
        .connect_with(&server.url(), |options| options.local_refusals = false)
        .await;
    let limits = [
        bucket("three", 0, 1, HOUR, 3),
        bucket("five", 1, 1, HOUR, 5),
    ];
    let claims = [0, 1].map(|place| Claim::new(&limits[place], b"k", 1));
    server.sql("SET GLOBAL general_log = 1");
    let mut granted = Vec::new();
    for claims in [
        &claims[..],
        &claims,
        &claims,
        &claims,
        &claims[1..],
        &claims[1..],
        &claims[1..],
    ] {
        granted.push(store.draw(claims).await.unwrap().granted);
    }
    server.sql("SET GLOBAL general_log = 0");
    assert_eq!(granted, [true, true, true, false, true, true, false]);
    let asked = "SELECT COALESCE(SUM(argument LIKE 'CALL tollgate_draw_4(%'), 0),
                        COALESCE(SUM(argument LIKE '%tollgate_buckets%FOR UPDATE%'), 0)
                 FROM mysql.general_log WHERE argument NOT LIKE '%general_log%'";
    let told = server.sql(asked);
    let counts: Vec<u32> = told
        .trim()
        .split('\t')
        .map(|one| one.parse().unwrap())
        .collect();
    // (A call that is late is made again.)
    assert!(counts[0] >= 7, "{counts:?}");
    assert_eq!(counts[1], 0, "locks of several statements");
}
